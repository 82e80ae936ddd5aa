// Damaged checkpoints and data: the job goes on from intact ones and says so, or is refused with
// the file's name and the expected contents.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/testing/test_forge.h"
#include "tests/e2e/cluster.h"
#include "tests/soak.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;

struct Damage {
  std::string name;
  std::function<void(const std::string& directory)> apply;
  std::string evidence;  // "DIR" stands for the damaged checkpoint
};

void FlipByte(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-5, std::ios::end);
  const auto at = file.tellg();
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(byte);
}

void CutInHalf(const std::string& path) {
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
}

std::vector<Damage> Damages() {
  return {
      {"a byte is flipped",
       [](const std::string& directory) { FlipByte(directory + "/rank-00001.safetensors"); },
       "DIR/rank-00001.safetensors: its SHA-256 is "},
      {"a shard is truncated",
       [](const std::string& directory) { CutInHalf(directory + "/rank-00002.safetensors"); },
       "DIR/rank-00002.safetensors: has "},
      {"a shard is missing",
       [](const std::string& directory) {
         std::filesystem::remove(directory + "/rank-00003.safetensors");
       },
       "DIR/rank-00003.safetensors: No such file or directory"},
      {"the manifest is half-written",
       [](const std::string& directory) { CutInHalf(directory + "/manifest.json"); },
       "DIR/manifest.json: "},
  };
}

class CorruptionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster_.StartDriver();
    StartAgents();
  }
  // When the checkpoint of `step` is committed, ends both agents, and with them the snapshots in
  // memory. Damages the job's `count` newest checkpoints by hiding their manifests, and starts the
  // agents again. Returns the directories of its committed checkpoints, newest first.
  std::vector<std::string> DamageNewest(const std::string& job_id, int64_t step, size_t count) {
    EXPECT_TRUE(
        WaitUntil([&] { return cluster_.Status(job_id).last_checkpoint().step() >= step; }, 60));
    cluster_.KillAgent(0);
    cluster_.KillAgent(1);
    EXPECT_TRUE(WaitUntil(
        [&] { return cluster_.Status(job_id).state() == control::v1::JOB_STATE_RECOVERING; }, 60));
    std::vector<std::string> directories;
    for (const auto& entry : std::filesystem::directory_iterator(cluster_.checkpoints(job_id))) {
      const std::string path = entry.path().string();
      if (std::filesystem::exists(path + "/manifest.json")) directories.push_back(path);
    }
    std::sort(directories.rbegin(), directories.rend());
    // A newer checkpoint may be complete but not committed.
    const std::string newest = cluster_.Status(job_id).last_checkpoint().directory();
    directories.erase(directories.begin(),
                      std::find(directories.begin(), directories.end(), newest));
    for (size_t i = 0; i < std::min(count, directories.size()); ++i) {
      std::filesystem::rename(directories[i] + "/manifest.json", directories[i] + "/hidden");
    }
    StartAgents();
    return directories;
  }
  void StartAgents() {
    cluster_.StartAgent(0, 2);
    cluster_.StartAgent(1, 2);
  }

  Cluster cluster_;
};

// The parameter is the index of a damage in Damages().
class DamageTest : public CorruptionTest, public ::testing::WithParamInterface<int> {
 protected:
  struct Ended {
    std::string digest;
    std::vector<std::string> losses;
  };
  // The run without faults.
  static const Ended& Calm(const Cluster& cluster) {
    static const auto* const calm = [&cluster] {
      cluster.Submit("calm");
      EXPECT_EQ(cluster.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);
      return new Ended{cluster.Digest("calm"), cluster.LossLog("calm")};
    }();
    return *calm;
  }
};

TEST_P(DamageTest, OfTheNewestCheckpointMeansThatThePreviousOneIsUsedAndItSaysSo) {
  const Damage damage = Damages().at(static_cast<size_t>(GetParam()));
  SCOPED_TRACE(damage.name);
  const Ended& calm = Calm(cluster_);
  cluster_.Submit("job", {"fault.restart_backoff=100ms"});
  ASSERT_TRUE(cluster_.WaitForStep("job", 70));
  // The snapshots in memory end with the agents, so only storage is left.
  cluster_.KillAgent(0);
  cluster_.KillAgent(1);
  // Wait until the driver has lost the nodes, so that it commits nothing more.
  ASSERT_TRUE(WaitUntil(
      [&] { return cluster_.Status("job").state() == control::v1::JOB_STATE_RECOVERING; }, 60));
  const Job before = cluster_.Status("job");
  ASSERT_LT(before.last_step(), 150) << "the job ended before it could be disturbed";
  ASSERT_GE(before.last_checkpoint().step(), 40);
  const std::string newest = before.last_checkpoint().directory();
  damage.apply(newest);
  StartAgents();
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  const Job after = cluster_.Status("job");
  EXPECT_EQ(cluster_.Digest("job"), calm.digest);
  EXPECT_EQ(cluster_.LossLog("job"), calm.losses);
  EXPECT_EQ(after.attempt(), before.attempt() + 3) << "two that find it damaged, one that goes on";
  EXPECT_EQ(after.culprit().failure_class(), telemetry::v1::FAILURE_CLASS_CORRUPT);
  const std::string evidence = absl::StrReplaceAll(damage.evidence, {{"DIR", newest}});
  EXPECT_NE(after.culprit().evidence().find(evidence), std::string::npos)
      << after.culprit().evidence();
  EXPECT_NE(after.culprit().evidence().find("an older checkpoint is used"), std::string::npos)
      << after.culprit().evidence();
}

// One damage, under `./dev soak` all; reader_test damages every part of a checkpoint.
INSTANTIATE_TEST_SUITE_P(All, DamageTest,
                         ::testing::Range(0, IsSoak() ? static_cast<int>(Damages().size()) : 1));

class PacedCorruptionTest : public CorruptionTest {
 protected:
  void SetUp() override {
    cluster_.PaceJobs();
    CorruptionTest::SetUp();
  }
};

TEST_F(PacedCorruptionTest, EveryOlderCheckpointIsTriedAndThenTheJobStopsAndSaysHowToGoOn) {
  const std::vector<std::string> shape = {"train.steps=80", "train.micro_batch_size=4"};
  std::vector<std::string> sets = {"checkpoint.interval=5", "checkpoint.keep=5",
                                   "fault.restart_backoff=10ms",
                                   "fault.max_restarts_without_progress=1"};
  sets.insert(sets.end(), shape.begin(), shape.end());
  cluster_.Submit("calm", shape);
  ASSERT_EQ(cluster_.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);

  cluster_.Submit("four", sets);
  const std::vector<std::string> of_four = DamageNewest("four", 30, 4);
  ASSERT_GE(of_four.size(), 5u);
  EXPECT_EQ(cluster_.WaitForEnd("four"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster_.Digest("four"), cluster_.Digest("calm"));
  EXPECT_EQ(cluster_.LossLog("four"), cluster_.LossLog("calm"));
  EXPECT_NE(cluster_.Status("four").culprit().evidence().find(
                absl::StrCat("an older checkpoint is used: ", of_four[4])),
            std::string::npos)
      << cluster_.Status("four").culprit().evidence();

  cluster_.Submit("five", sets);
  const std::vector<std::string> of_five = DamageNewest("five", 30, 100);
  EXPECT_EQ(cluster_.WaitForEnd("five"), control::v1::JOB_STATE_FAILED);
  const Job five = cluster_.Status("five");
  EXPECT_EQ(five.reason(), "CheckpointsUnreadable");
  EXPECT_EQ(five.last_checkpoint().directory(), of_five[0]);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NE(five.message().find(absl::StrCat(" in ", of_five[i], ": on node n")),
              std::string::npos)
        << five.message();
    EXPECT_TRUE(std::filesystem::exists(of_five[i] + "/hidden")) << "it is kept";
  }
  // The message says what to do.
  EXPECT_NE(five.message().find(" --from DIRECTORY"), std::string::npos) << five.message();
  std::filesystem::rename(of_five[4] + "/hidden", of_five[4] + "/manifest.json");
  EXPECT_EQ(cluster_.Megascale({"checkpoint", "verify", of_five[4]}).exit_code, 0);
  EXPECT_EQ(cluster_
                .Megascale({"submit", cluster_.directory() + "/job.yaml", "--job-id", "on",
                            "--from", of_five[4], "--set", shape[0], "--set", shape[1]})
                .exit_code,
            0);
  EXPECT_EQ(cluster_.WaitForEnd("on"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster_.Digest("on"), cluster_.Digest("calm"));
}

TEST_F(CorruptionTest, ToStartFromADamagedCheckpointIsRefusedWithTheFile) {
  cluster_.Submit("first");
  ASSERT_EQ(cluster_.WaitForEnd("first"), control::v1::JOB_STATE_SUCCEEDED);
  const std::string good = cluster_.Status("first").last_checkpoint().directory();
  int index = 0;
  for (const Damage& damage : Damages()) {
    SCOPED_TRACE(damage.name);
    const std::string copy = absl::StrCat(cluster_.directory(), "/copy-", ++index);
    std::filesystem::copy(good, copy, std::filesystem::copy_options::recursive);
    damage.apply(copy);
    const std::string job_id = absl::StrCat("from-", index);
    const CommandResult submitted = cluster_.Megascale(
        {"submit", cluster_.directory() + "/job.yaml", "--job-id", job_id, "--from", copy, "--set",
         "train.steps=160", "--allow-changed", "optimizer"});
    const std::string evidence = absl::StrReplaceAll(damage.evidence, {{"DIR", copy}});
    if (absl::StrContains(evidence, "manifest.json")) {
      EXPECT_NE(submitted.exit_code, 0) << "submit reads it";
      EXPECT_NE(submitted.err.find("--from: " + evidence), std::string::npos) << submitted.err;
      continue;
    }
    ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
    EXPECT_EQ(cluster_.WaitForEnd(job_id), control::v1::JOB_STATE_FAILED);
    const Job job = cluster_.Status(job_id);
    EXPECT_LE(job.attempt(), 2) << "what the preflight cannot see is read twice";
    EXPECT_NE(job.message().find(evidence), std::string::npos) << job.message();
    EXPECT_EQ(job.message().find('\n'), std::string::npos) << "one line: " << job.message();
  }
}

TEST_F(CorruptionTest, ACheckpointOfAnotherModelIsRefusedWithTheField) {
  cluster_.Submit("first", {"train.steps=20"});
  ASSERT_EQ(cluster_.WaitForEnd("first"), control::v1::JOB_STATE_SUCCEEDED);
  const std::string good = cluster_.Status("first").last_checkpoint().directory();
  const auto start = [&](const std::string& job_id, const std::vector<std::string>& more) {
    std::vector<std::string> command = {
        "submit", cluster_.directory() + "/job.yaml", "--job-id", job_id, "--from", good,
        "--set",  "model.intermediate_size=128"};
    command.insert(command.end(), more.begin(), more.end());
    EXPECT_EQ(cluster_.Megascale(command).exit_code, 0);
    EXPECT_EQ(cluster_.WaitForEnd(job_id), control::v1::JOB_STATE_FAILED);
    return cluster_.Status(job_id);
  };
  const Job refused = start("other", {});
  EXPECT_EQ(refused.attempt(), 1);
  EXPECT_EQ(refused.reason(), "Refused");
  EXPECT_NE(refused.message().find("model.intermediate_size"), std::string::npos)
      << refused.message();
  // The bits may differ, but not the shapes.
  const Job forced = start("forced", {"--allow-changed", "model,optimizer"});
  EXPECT_EQ(forced.reason(), "DataCorrupt");
  EXPECT_NE(forced.message().find("has the shape [256, 64], the model wants [128, 64]: it is the "
                                  "checkpoint of another model"),
            std::string::npos)
      << forced.message();
}

TEST_F(CorruptionTest, AWeightThatIsNoNumberStopsTheJobWithStepLayerAndOperator) {
  cluster_.Submit("first", {"train.steps=20"});
  ASSERT_EQ(cluster_.WaitForEnd("first"), control::v1::JOB_STATE_SUCCEEDED);
  const std::string checkpoint = cluster_.Status("first").last_checkpoint().directory();
  ASSERT_EQ(checkpoint::ForgeElement(checkpoint, {.tensor = "model.layers.1.attn.qkv.weight",
                                                  .index = 7,
                                                  .value = std::numeric_limits<float>::infinity()}),
            absl::OkStatus());
  const CommandResult submitted =
      cluster_.Megascale({"submit", cluster_.directory() + "/job.yaml", "--job-id", "job", "--from",
                          checkpoint, "--set", "train.steps=60", "--allow-changed", "optimizer"});
  ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_FAILED);
  const Job job = cluster_.Status("job");
  EXPECT_EQ(job.attempt(), 1) << "diverged numbers come back however often they are tried";
  EXPECT_EQ(job.reason(), "Diverged");
  EXPECT_EQ(job.culprit().failure_class(), telemetry::v1::FAILURE_CLASS_DIVERGED);
  for (const char* part : {"training diverged at step 21: loss nan",
                           "it began in layer 1: matrix product with attn.qkv.weight gave "}) {
    EXPECT_NE(job.message().find(part), std::string::npos)
        << part << " is not in " << job.message();
  }
}

TEST_F(CorruptionTest, ADataFileThatShrinksDuringTheRunEndsTheJobWithItsName) {
  cluster_.Submit("job", {"train.steps=1000000"});
  ASSERT_TRUE(cluster_.WaitForStep("job", 10));
  const std::string text = cluster_.directory() + "/text";
  std::filesystem::resize_file(text, 5000);
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_FAILED);
  const Job job = cluster_.Status("job");
  EXPECT_EQ(job.reason(), "Refused");
  EXPECT_NE(job.message().find(absl::StrCat("data.files changed since the job began (", text)),
            std::string::npos)
      << job.message();
}

}  // namespace
}  // namespace megascale::e2e
