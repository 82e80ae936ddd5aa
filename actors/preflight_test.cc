#include "actors/preflight.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/device/device.h"
#include "runtime/hugging_face/import.h"
#include "runtime/hugging_face/initial_weights.h"
#include "runtime/hugging_face/testing/test_folder.h"
#include "runtime/job/data_digest.h"
#include "runtime/job/job_spec.h"

namespace megascale::actors {
namespace {

using megascale::agent::v1::Preflight;
using megascale::link::v1::HostAssignment;

const device::Description kCpu = {.name = "cpu", .numerics = "avx2"};

class PreflightTest : public ::testing::Test {
 protected:
  PreflightTest() {
    directory_ = absl::StrCat(::testing::TempDir(), "preflight_test.",
                              ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    EXPECT_TRUE(base::WriteFileDurably(directory_ + "/text", std::string(4000, 'x')).ok());
  }

  // Returns the assignment of n0 for a job that learns a tokenizer from text of its own.
  HostAssignment AssignmentWithTokenizer() const {
    std::string text;
    for (int i = 0; i < 500; ++i) absl::StrAppend(&text, "line ", i * i, "\n");
    EXPECT_TRUE(base::WriteFileDurably(directory_ + "/text", text).ok());
    HostAssignment assignment = AssignmentOf("n0");
    job::v1::JobSpec& spec = *assignment.mutable_spec();
    spec.mutable_model()->set_vocab_size(300);
    spec.mutable_data()->set_tokenizer_vocab_size(300);
    spec.mutable_data()->set_token_cache(directory_ + "/tokens");
    return assignment;
  }

  // Returns the assignment of a job with a rank on n0 and one on n1, for the agent of `node_id`.
  HostAssignment AssignmentOf(const std::string& node_id, int threads = 1) const {
    job::v1::JobSpec spec;
    spec.set_name("toy");
    spec.mutable_model()->set_hidden_size(16);
    spec.mutable_model()->set_num_hidden_layers(1);
    spec.mutable_model()->set_num_attention_heads(2);
    spec.mutable_data()->add_files(directory_ + "/text");
    spec.mutable_train()->set_steps(5);
    spec.mutable_train()->set_seq_length(12);
    spec.mutable_train()->set_global_batch_size(4);
    spec.mutable_train()->set_micro_batch_size(2);
    spec.mutable_parallel()->set_data_parallel_size(2);
    spec.mutable_parallel()->set_threads_per_rank(threads);
    spec.mutable_fault()->mutable_start_timeout()->set_seconds(2);
    HostAssignment assignment;
    *assignment.mutable_spec() = job::ResolveJobSpec(spec).value();
    assignment.set_node_id(node_id);
    assignment.set_preflight_only(true);
    assignment.add_local_ranks(node_id == "n0" ? 0 : 1);
    assignment.set_nonce("of attempt 1");
    assignment.set_nonce_node_id("n0");
    assignment.set_checkpoint_directory(directory_ + "/checkpoints");
    return assignment;
  }

  // Runs the preflight without measuring, as on an idle machine.
  static Preflight Run(const HostAssignment& assignment,
                       std::function<void(const Preflight&)> on_progress = nullptr,
                       std::function<std::vector<std::string>()> fetch_files = nullptr) {
    CeilingSources sources;
    sources.measure = [](bool) { return 1e11; };
    sources.is_idle = [] { return true; };
    PreflightOptions options;
    options.ceilings = sources;
    options.on_progress = std::move(on_progress);
    options.fetch_files = std::move(fetch_files);
    return RunPreflight(assignment, kCpu, options).value();
  }

  std::string directory_;
};

TEST_F(PreflightTest, HeldOutTextWithoutAWindowIsSaidOnceAndTheJobPasses) {
  HostAssignment assignment = AssignmentOf("n0");
  assignment.mutable_spec()->mutable_data()->set_held_out_fraction(0.003);
  assignment.mutable_spec()->mutable_train()->set_eval_interval(1);
  const Preflight passed = Run(assignment);
  EXPECT_EQ(passed.state(), Preflight::STATE_PASSED);
  ASSERT_EQ(passed.warnings_size(), 1);
  EXPECT_EQ(passed.warnings(0),
            "the held-out part of the data has 12 tokens, and a window for the loss on held-out "
            "text needs train.seq_length + 1 = 13; the job trains without that loss: raise "
            "data.held_out_fraction, or set train.eval_interval to 0");
  assignment.mutable_spec()->mutable_train()->set_eval_interval(0);
  EXPECT_EQ(Run(assignment).warnings_size(), 0);
}

TEST_F(PreflightTest, TwoMachinesThatSeeOneDirectoryPass) {
  const Preflight writer = Run(AssignmentOf("n0"));
  EXPECT_EQ(writer.state(), Preflight::STATE_PASSED) << writer.message();
  const Preflight reader = Run(AssignmentOf("n1"));
  EXPECT_EQ(reader.state(), Preflight::STATE_PASSED) << reader.message();
  EXPECT_GT(reader.flops_ceiling(), 0);
}

TEST_F(PreflightTest, AMachineWithADirectoryOfItsOwnIsRefusedWithBothNames) {
  ASSERT_EQ(Run(AssignmentOf("n0")).state(), Preflight::STATE_PASSED);
  HostAssignment other = AssignmentOf("n1");
  other.set_checkpoint_directory(directory_ + "/of-n1");
  const Preflight refused = Run(other);
  EXPECT_EQ(refused.state(), Preflight::STATE_REFUSED);
  EXPECT_EQ(refused.message(),
            absl::StrCat("checkpoint.directory: node n1 does not see in ", directory_,
                         "/of-n1 what node n0 wrote there (looked for 1.6s); every machine needs "
                         "the same directory: mount one shared file system there"));
}

// The driver sends a digest of the list of files, and the list only if they differ.
TEST_F(PreflightTest, AFileThatDiffersFromThoseOfTheJobIsNamedWithTheListOfTheDriver) {
  std::filesystem::create_directories(directory_ + "/many");
  for (const char* name : {"a", "b", "c"}) {
    const std::string text(2000, *name);
    ASSERT_TRUE(base::WriteFileDurably(absl::StrCat(directory_, "/many/", name), text).ok());
  }
  HostAssignment assignment = AssignmentOf("n0");
  assignment.mutable_spec()->mutable_data()->set_files(0, directory_ + "/many");
  const Preflight first = Run(assignment);
  ASSERT_EQ(first.data().file_sha256_size(), 3) << first.message();
  *assignment.mutable_data() = job::DigestOf(first.data());
  int num_fetched = 0;
  const auto fetch = [&] {
    ++num_fetched;
    const auto& files = first.data().file_sha256();
    return std::vector<std::string>(files.begin(), files.end());
  };
  EXPECT_EQ(Run(assignment, nullptr, fetch).state(), Preflight::STATE_PASSED);
  EXPECT_EQ(num_fetched, 0);
  ASSERT_TRUE(base::WriteFileDurably(directory_ + "/many/b", std::string(2000, 'x')).ok());
  const Preflight refused = Run(assignment, nullptr, fetch);
  EXPECT_EQ(refused.state(), Preflight::STATE_REFUSED);
  EXPECT_EQ(refused.message(),
            "data.files: the text on node n0 differs from that on which the job has trained "
            "(files[1] of 3 is the first); every machine needs the same files");
  EXPECT_EQ(Run(assignment).message(),
            "data.files: the text on node n0 differs from that on which the job has trained; every "
            "machine needs the same files");
}

TEST_F(PreflightTest, TextIsEncodedOnceAndThePreflightSaysSo) {
  const HostAssignment assignment = AssignmentWithTokenizer();
  std::vector<Preflight> running;
  const auto keep = [&](const Preflight& one) { running.push_back(one); };
  const Preflight passed = Run(assignment, keep);
  EXPECT_EQ(passed.state(), Preflight::STATE_PASSED) << passed.message();
  EXPECT_GT(passed.data().total_tokens(), 0);
  ASSERT_FALSE(running.empty());
  EXPECT_EQ(running[0].state(), Preflight::STATE_RUNNING);
  EXPECT_GT(running[0].progress(), 0);
  EXPECT_EQ(running[0].message(),
            absl::StrCat("learning a tokenizer from ", directory_, "/text: 100 %"));
  running.clear();
  EXPECT_EQ(Run(assignment, keep).data().tokens_sha256(), passed.data().tokens_sha256());
  EXPECT_TRUE(running.empty()) << "the second machine, or attempt, finds the tokens";
  ASSERT_TRUE(base::WriteFileDurably(directory_ + "/text", "\xff" + std::string(4000, 'x')).ok());
  const Preflight refused = Run(assignment, keep);
  EXPECT_EQ(refused.state(), Preflight::STATE_REFUSED);
  EXPECT_EQ(refused.message(),
            absl::StrCat(directory_,
                         "/text:1: is not UTF-8 at byte 0 of the file; convert it, "
                         "or leave such bytes out with --skip-bad"));
}

TEST_F(PreflightTest, WaitingForAnotherJobsTokensIsProgress) {
  const HostAssignment assignment = AssignmentWithTokenizer();
  ASSERT_EQ(Run(assignment).state(), Preflight::STATE_PASSED);
  // Another process holds every folder until the preflight has said twice that it waits.
  std::vector<base::UniqueFd> locks;
  for (const auto& folder : std::filesystem::directory_iterator(directory_ + "/tokens")) {
    const std::string path = folder.path().string() + "/lock";
    locks.emplace_back(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::flock(locks.back().get(), LOCK_EX | LOCK_NB), 0) << path;
  }
  ASSERT_FALSE(locks.empty());
  std::vector<int64_t> progress;
  const auto keep = [&](const Preflight& one) {
    progress.push_back(one.progress());
    EXPECT_EQ(one.message(), "waiting for a tokenizer");
    if (progress.size() == 2) locks.clear();
  };
  EXPECT_EQ(Run(assignment, keep).state(), Preflight::STATE_PASSED);
  EXPECT_EQ(progress, (std::vector<int64_t>{1, 2}));
}

TEST_F(PreflightTest, ACheckpointDirectoryThatCannotBeIsNamed) {
  HostAssignment assignment = AssignmentOf("n0");
  assignment.set_checkpoint_directory(directory_ + "/text/checkpoints");
  const Preflight refused = Run(assignment);
  EXPECT_EQ(refused.state(), Preflight::STATE_REFUSED);
  EXPECT_EQ(refused.message(), absl::StrCat("checkpoint.directory: make directory ", directory_,
                                            "/text/checkpoints: Not a directory"));
}

TEST_F(PreflightTest, TheDirectoryOfAnotherJobIsRefusedUnlessItIsTakenOver) {
  HostAssignment first = AssignmentOf("n0");
  first.mutable_owner()->set_job_id("toy");
  first.mutable_owner()->set_log_id("10c00000aaaa");
  const Preflight passed = Run(first);
  EXPECT_EQ(passed.state(), Preflight::STATE_PASSED) << passed.message();
  EXPECT_TRUE(passed.owns_directory());
  HostAssignment second = AssignmentOf("n1");
  *second.mutable_owner() = first.owner();
  EXPECT_TRUE(Run(second).owns_directory()) << "the other machine of the job";
  HostAssignment other = first;
  other.mutable_owner()->set_log_id("0123");
  const Preflight refused = Run(other);
  EXPECT_EQ(refused.state(), Preflight::STATE_REFUSED);
  EXPECT_EQ(refused.message(),
            absl::StrCat("checkpoint.directory: ", directory_,
                         "/checkpoints: belongs to job toy of the driver's log 10c00000; choose "
                         "another checkpoint.directory or job id, or take it over with "
                         "--take-over"));
  other.set_take_over(true);
  const Preflight taken = Run(other);
  EXPECT_EQ(taken.state(), Preflight::STATE_PASSED) << taken.message();
  EXPECT_EQ(taken.warnings_size(), 1);
  // The job that lost the directory ends, on every machine.
  *first.mutable_data() = passed.data();
  first.set_ran_here(true);
  EXPECT_EQ(RunPreflight(first, kCpu, {}).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(PreflightTest, AJobThatHasRunWaitsUntilItsStorageIsBack) {
  HostAssignment assignment = AssignmentOf("n0");
  assignment.mutable_owner()->set_job_id("toy");
  assignment.mutable_owner()->set_log_id("10c0");
  const Preflight passed = Run(assignment);
  ASSERT_EQ(passed.state(), Preflight::STATE_PASSED) << passed.message();
  *assignment.mutable_data() = passed.data();
  assignment.set_ran_here(true);
  assignment.set_owns_directory(true);
  const std::string directory = assignment.checkpoint_directory();
  std::filesystem::rename(directory, directory_ + "/away");
  std::vector<std::string> said;
  const auto mount = [&](const Preflight& waits) {
    said.push_back(waits.message());
    if (said.size() > 1) return;
    EXPECT_FALSE(std::filesystem::exists(directory)) << "made anew";
    std::filesystem::rename(directory_ + "/away", directory);
    std::filesystem::remove(directory_ + "/text");  // the data comes later
  };
  const auto mount_data = [&](const Preflight& waits) {
    mount(waits);
    if (said.size() == 2) {
      EXPECT_TRUE(base::WriteFileDurably(directory_ + "/text", std::string(4000, 'x')).ok());
    }
  };
  EXPECT_EQ(Run(assignment, mount_data).state(), Preflight::STATE_PASSED);
  ASSERT_EQ(said.size(), 2u);
  EXPECT_TRUE(absl::StrContains(said[0], "waits for storage (0 of 1h): checkpoint.directory: "))
      << said[0];
  EXPECT_TRUE(absl::StrContains(said[0], "is its file system mounted?")) << said[0];
  EXPECT_TRUE(absl::StrContains(said[1], directory_ + "/text")) << said[1];
  // It does not wait for ever.
  assignment.mutable_spec()->mutable_fault()->mutable_checkpoint_timeout()->set_seconds(1);
  std::filesystem::remove(directory_ + "/text");
  const auto gone = RunPreflight(assignment, kCpu, {});
  EXPECT_EQ(base::ErrnoOf(gone.status()), ENOENT) << gone.status();
}

// The driver may place the job elsewhere then.
TEST_F(PreflightTest, StorageThatIsAwayForLongIsSaidToTheDriver) {
  HostAssignment assignment = AssignmentOf("n0");
  assignment.mutable_spec()->mutable_fault()->mutable_checkpoint_timeout()->set_seconds(1);
  assignment.set_ran_here(true);
  std::filesystem::remove(directory_ + "/text");
  std::vector<std::string> said;
  const auto say = [&](const std::string& why) { said.push_back(why); };
  EXPECT_FALSE(RunPreflight(assignment, kCpu, {.on_away = say}).ok());
  EXPECT_TRUE(said.empty()) << "not before 20 s";
  EXPECT_FALSE(
      RunPreflight(assignment, kCpu, {.on_away = say, .away_short = absl::ZeroDuration()}).ok());
  ASSERT_FALSE(said.empty());
  EXPECT_TRUE(absl::StrContains(said[0], directory_ + "/text")) << said[0];
}

TEST_F(PreflightTest, TheFirstPreflightFindsTheAttemptsThatTheDirectoryHasHad) {
  HostAssignment assignment = AssignmentOf("n0");
  assignment.mutable_owner()->set_job_id("toy");
  assignment.mutable_owner()->set_log_id("10c0");
  EXPECT_EQ(Run(assignment).newest_attempt(), 0);
  const std::string& directory = assignment.checkpoint_directory();
  std::filesystem::create_directories(directory + "/step-00000010-attempt-3");
  std::filesystem::create_directories(directory + "/taken-over-1234/step-00000010-attempt-7");
  EXPECT_EQ(Run(assignment).newest_attempt(), 7);
  *assignment.mutable_data() = Run(assignment).data();
  EXPECT_EQ(Run(assignment).newest_attempt(), 0) << "they are the job's own";
}

TEST_F(PreflightTest, MoreThreadsThanCoresIsAWarning) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const Preflight passed = Run(AssignmentOf("n0", cores + 1));
  EXPECT_EQ(passed.state(), Preflight::STATE_PASSED) << passed.message();
  ASSERT_EQ(passed.warnings_size(), 1);
  const std::string begin = absl::StrCat("parallel.threads_per_rank: 1 rank × ", cores + 1, " = ",
                                         cores + 1, " threads share ");
  EXPECT_EQ(passed.warnings(0).substr(0, begin.size()), begin);
}

TEST_F(PreflightTest, BytesThatAreNoTextAreTrainedOnAndWarnedOf) {
  ASSERT_TRUE(base::WriteFileDurably(directory_ + "/text", std::string(4000, '\0')).ok());
  const Preflight passed = Run(AssignmentOf("n0"));
  EXPECT_EQ(passed.state(), Preflight::STATE_PASSED) << passed.message();
  ASSERT_EQ(passed.warnings_size(), 1);
  EXPECT_EQ(
      passed.warnings(0),
      absl::StrCat("data.files: ", directory_,
                   "/text: byte 0 is NUL, as in binary files; every byte is a token, so it is "
                   "trained on as it is"));
}

TEST_F(PreflightTest, WeightsToBeginWithAreReadBeforeAnythingStarts) {
  const hugging_face::TestFolder folder;
  HostAssignment assignment = AssignmentOf("n0");
  assignment.mutable_spec()->mutable_model()->set_from(folder.path());
  const Preflight refused = Run(assignment);
  EXPECT_EQ(refused.state(), Preflight::STATE_REFUSED);
  EXPECT_EQ(refused.message(),
            absl::StrCat("model.from: ", folder.path(),
                         ": model.embed_tokens.weight has the shape [10, 8], the job's model wants "
                         "[256, 16]; take the model section from these weights"));
}

TEST_F(PreflightTest, DropoutOfWeightsToBeginWithIsIgnoredWithAWarning) {
  const hugging_face::TestFolder folder;
  folder.Write(
      "config.json",
      absl::StrReplaceAll(hugging_face::kLlamaConfig,
                          {{"\"vocab_size\"", "\"attention_dropout\": 0.5, \"vocab_size\""}}));
  HostAssignment assignment = AssignmentOf("n0");
  *assignment.mutable_spec()->mutable_model() =
      hugging_face::MergeModels(hugging_face::FindSource(folder.path()).value(), {}, {}).value();
  const Preflight passed = Run(assignment);
  EXPECT_EQ(passed.state(), Preflight::STATE_PASSED) << passed.message();
  ASSERT_EQ(passed.warnings_size(), 1);
  EXPECT_EQ(passed.warnings(0), absl::StrCat(folder.path(),
                                             "/config.json: attention_dropout is 0.5: ignored, "
                                             "this program trains without dropout"));
}

TEST_F(PreflightTest, ACheckpointOfWeightsAloneIsNotGoneOnFrom) {
  const hugging_face::TestFolder folder;
  const std::string weights = directory_ + "/weights";
  ASSERT_EQ(hugging_face::Import(folder.path(), weights).status(), absl::OkStatus());
  HostAssignment assignment = AssignmentOf("n0");
  assignment.set_from_checkpoint(weights);
  const Preflight refused = Run(assignment);
  EXPECT_EQ(refused.state(), Preflight::STATE_REFUSED);
  EXPECT_EQ(refused.message(),
            absl::StrCat(weights,
                         ": holds weights alone, no optimizer state to go on from; begin "
                         "with them by model.from instead of --from"));
}

TEST(IsAwayTest, StorageThatIsAwayIsNoMistakeOfTheUser) {
  for (const int error : {EIO, ESTALE, ENOTCONN, ETIMEDOUT, EHOSTUNREACH}) {
    EXPECT_TRUE(IsAway(base::ErrnoStatus(error, "data file x"))) << error;
  }
  for (const int error : {ENOENT, EACCES, ENOTDIR, EROFS, ENOSPC}) {
    EXPECT_FALSE(IsAway(base::ErrnoStatus(error, "data file x"))) << error;
  }
  EXPECT_FALSE(IsAway(absl::InvalidArgumentError("data.files: is empty")));
  EXPECT_FALSE(IsAway(absl::OkStatus()));
}

// A machine that is idle or busy, and a clock, both set by the test.
class CeilingTest : public PreflightTest {
 protected:
  Ceiling Find(bool idle, double flops_per_second, const std::string& key = "bf16 2 cores") {
    CeilingSources sources;
    sources.directory = directory_ + "/state";
    sources.is_idle = [idle] { return idle; };
    sources.measure = [&](bool measured_idle) {
      EXPECT_EQ(measured_idle, idle) << "a busy machine is measured for less time";
      ++num_measured_;
      return flops_per_second;
    };
    sources.now = [this] { return now_; };
    return FindCeiling(key, sources);
  }

  absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);
  int num_measured_ = 0;
};

// The job needs some MiB of its GPU besides the driver's memory; others use all but one.
TEST_F(PreflightTest, AGpuWhoseMemoryOthersUseIsRefusedByWhatTheyLeave) {
  HostAssignment assignment = AssignmentOf("n0");
  assignment.mutable_spec()->set_device(job::v1::DEVICE_CUDA);
  device::Description gpu = {.name = "a GPU",
                             .numerics = "a GPU",
                             .memory_bytes = int64_t{80} << 30,
                             .peak = {.fp32 = 6e13}};
  EXPECT_EQ(RunPreflight(assignment, gpu)->state(), Preflight::STATE_PASSED);
  gpu.free_bytes = 1 << 20;
  const Preflight refused = RunPreflight(assignment, gpu).value();
  EXPECT_EQ(refused.state(), Preflight::STATE_REFUSED);
  EXPECT_TRUE(absl::StrContains(refused.message(), "rank 0 needs ")) << refused.message();
  EXPECT_TRUE(absl::StrContains(refused.message(), "1.0 MiB of 80.0 GiB are left by a GPU"))
      << refused.message();
  gpu.free_bytes = int64_t{81} << 30;  // as a part of a GPU may say of the whole
  gpu.memory_bytes = 1 << 20;
  EXPECT_EQ(RunPreflight(assignment, gpu)->state(), Preflight::STATE_REFUSED);
}

// Processes of the attempt before have ended and still give theirs back.
TEST_F(PreflightTest, MemoryOfAGpuThatBecomesFreeSoonIsNoRefusal) {
  HostAssignment assignment = AssignmentOf("n0");
  assignment.mutable_spec()->set_device(job::v1::DEVICE_CUDA);
  const device::Description gpu = {.name = "a GPU",
                                   .numerics = "a GPU",
                                   .memory_bytes = int64_t{80} << 30,
                                   .free_bytes = 1 << 20,
                                   .peak = {.fp32 = 6e13}};
  int num_asked = 0;
  const auto later = [&]() -> std::optional<int64_t> {
    return ++num_asked < 3 ? int64_t{1} << 20 : int64_t{79} << 30;
  };
  EXPECT_EQ(RunPreflight(assignment, gpu, {.free_bytes = later})->state(), Preflight::STATE_PASSED);
  EXPECT_EQ(num_asked, 3);
  const auto never = [] { return std::optional<int64_t>(1 << 20); };
  EXPECT_EQ(RunPreflight(assignment, gpu,
                         {.free_bytes = never, .free_bytes_patience = absl::Milliseconds(300)})
                ->state(),
            Preflight::STATE_REFUSED);
}

TEST_F(CeilingTest, WhatAnIdleMachineMeasuredIsKept) {
  EXPECT_EQ(Find(true, 2.19e11).flops_per_second, 2.19e11);
  now_ += absl::Hours(75);
  for (const bool idle : {true, false}) {
    const Ceiling again = Find(idle, 6.6e10);
    EXPECT_EQ(again.flops_per_second, 2.19e11);
    EXPECT_EQ(CeilingText(again, now_), "219 GFLOP/s, measured 3 days ago on the idle machine");
  }
  EXPECT_EQ(num_measured_, 1);
  EXPECT_EQ(Find(true, 1e11, "fp32 2 cores").flops_per_second, 1e11) << "of another key";
  EXPECT_EQ(num_measured_, 2);
}

TEST_F(CeilingTest, OfABusyMachineTheBestIsKeptUntilItIsIdle) {
  EXPECT_EQ(Find(false, 6.6e10).flops_per_second, 6.6e10);
  EXPECT_EQ(Find(false, 1.2e11).flops_per_second, 1.2e11);
  now_ += absl::Minutes(5);
  const Ceiling best = Find(false, 9e10);
  EXPECT_EQ(best.flops_per_second, 1.2e11);
  EXPECT_EQ(CeilingText(best, now_), "120 GFLOP/s, measured 5 min ago while the machine was busy");
  EXPECT_EQ(Find(true, 1.1e11).flops_per_second, 1.1e11) << "the idle machine's replaces it";
  EXPECT_EQ(Find(false, 1.2e11).flops_per_second, 1.1e11);
  EXPECT_EQ(num_measured_, 4);
}

TEST_F(CeilingTest, AFileThatIsDamagedIsMeasuredAnew) {
  Find(true, 2e11);
  for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/state")) {
    EXPECT_TRUE(base::WriteFileDurably(entry.path().string(), "nonsense").ok());
  }
  EXPECT_EQ(Find(true, 1e11).flops_per_second, 1e11);
}

TEST_F(CeilingTest, ThePeakOfTheDevicesTakesThePlaceOfAMeasurement) {
  HostAssignment assignment = AssignmentOf("n0");
  assignment.add_local_ranks(1);
  const device::Description device = {
      .name = "fast", .numerics = "", .peak = {.fp32 = 6e13, .bf16 = 9.9e14}};
  CeilingSources sources;
  sources.measure = [&](bool) { return ++num_measured_; };
  const Preflight fp32 = RunPreflight(assignment, device, {.ceilings = sources}).value();
  EXPECT_EQ(fp32.state(), Preflight::STATE_PASSED) << fp32.message();
  EXPECT_EQ(fp32.flops_ceiling(), 1.2e14) << "of both ranks' devices";
  EXPECT_FALSE(fp32.has_ceiling_measured_at());
  assignment.mutable_spec()->mutable_train()->set_precision(job::v1::PRECISION_BF16);
  EXPECT_EQ(RunPreflight(assignment, device, {.ceilings = sources})->flops_ceiling(), 1.98e15);
  EXPECT_EQ(num_measured_, 0);
}

TEST_F(CeilingTest, ABusyMachineIsWarnedOf) {
  CeilingSources sources;
  sources.measure = [](bool) { return 6.6e10; };
  sources.is_idle = [] { return false; };
  sources.now = [] { return absl::FromUnixSeconds(1'000'000); };
  const Preflight passed = RunPreflight(AssignmentOf("n0"), kCpu, {.ceilings = sources}).value();
  EXPECT_EQ(passed.state(), Preflight::STATE_PASSED) << passed.message();
  EXPECT_EQ(passed.flops_ceiling(), 6.6e10);
  EXPECT_EQ(passed.ceiling_measured_at().seconds(), 1'000'000);
  ASSERT_EQ(passed.warnings_size(), 1);
  EXPECT_EQ(passed.warnings(0),
            "MFU is given against 66 GFLOP/s, measured just now while the machine was busy, the "
            "best so far; a job that starts while the machine is idle measures it anew");
}

TEST_F(PreflightTest, WhatOnlyANewerDriverKnowsIsRefusedAndNotLeftOut) {
  HostAssignment assignment = AssignmentOf("n0");
  assignment.mutable_spec()->mutable_train()->set_precision(static_cast<job::v1::Precision>(99));
  const auto result = RunPreflight(assignment, kCpu);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->state(), Preflight::STATE_REFUSED);
  EXPECT_TRUE(absl::StrContains(result->message(), "train.precision: has value 99"))
      << result->message();
}

}  // namespace
}  // namespace megascale::actors
