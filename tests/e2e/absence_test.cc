// Who was away comes back: a driver that is down again and again while its job makes checkpoints,
// and machines that froze, were replaced, and thaw with processes of an attempt that is over.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/checkpoint/directory.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;

constexpr int kRanks = 4;
constexpr int kSteps = 700;
constexpr int kAll = 100;
constexpr int kAbsences = 3;
// Checkpoints that finish while the driver is away.
constexpr int kCheckpointsMissed = 3;

std::vector<std::string> LongJob(int checkpoints_kept) {
  return {absl::StrCat("train.steps=", kSteps), absl::StrCat("checkpoint.keep=", checkpoints_kept)};
}

// Steps of which every rank's shard is stored.
std::set<int64_t> StoredSteps(const std::string& checkpoints) {
  std::set<int64_t> steps;
  const auto directories = checkpoint::ListStepDirectories(checkpoints);
  if (!directories.ok()) return steps;
  for (const auto& id : *directories) {
    const std::filesystem::path path =
        std::filesystem::path(checkpoints) / checkpoint::StepDirectoryName(id.step(), id.attempt());
    int shards = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      std::error_code error;
      shards += std::filesystem::exists(path / checkpoint::ShardRecordName(rank), error) ? 1 : 0;
    }
    if (shards == kRanks) steps.insert(id.step());
  }
  return steps;
}

class AbsenceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Cluster cluster;
    cluster.StartDriver();
    cluster.StartAgent(0, 4);
    cluster.Submit("calm", LongJob(kAll));
    ASSERT_EQ(cluster.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);
    digest_ = new std::string(cluster.Digest("calm"));
    losses_ = new std::vector<std::string>(cluster.LossLog("calm"));
  }
  static void TearDownTestSuite() {
    delete digest_;
    delete losses_;
  }

  void StartJob(const std::vector<std::string>& sets) {
    cluster_.StartDriver();
    cluster_.StartAgent(0, 2);
    cluster_.StartAgent(1, 2);
    cluster_.Submit("job", sets);
    ASSERT_TRUE(cluster_.WaitForStep("job", 30));
    checkpoints_ = cluster_.state_directory() + "/jobs/job/checkpoints";
  }
  void ExpectTheSameBits() {
    ASSERT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
    EXPECT_EQ(cluster_.Digest("job"), *digest_);
    EXPECT_EQ(cluster_.LossLog("job"), *losses_);
  }
  std::set<int32_t> Pids() const {
    std::set<int32_t> pids;
    const Job job = cluster_.Status("job");
    for (const auto& rank : job.ranks()) pids.insert(rank.status().pid());
    return pids;
  }

  static std::string* digest_;
  static std::vector<std::string>* losses_;
  Cluster cluster_;
  std::string checkpoints_;
};
std::string* AbsenceTest::digest_ = nullptr;
std::vector<std::string>* AbsenceTest::losses_ = nullptr;

TEST_F(AbsenceTest, CheckpointsThatFinishWhileTheDriverIsDownCountWhenItIsBack) {
  StartJob(LongJob(kAll));
  const std::set<int32_t> workers = Pids();
  ASSERT_EQ(workers.size(), static_cast<size_t>(kRanks));
  for (int absence = 0; absence < kAbsences; ++absence) {
    const int64_t committed = cluster_.Status("job").last_checkpoint().step();
    cluster_.KillDriver();
    int64_t newest = 0;
    ASSERT_TRUE(WaitUntil(
        [&] {
          const std::set<int64_t> stored = StoredSteps(checkpoints_);
          newest = stored.empty() ? 0 : *stored.rbegin();
          return std::distance(stored.upper_bound(committed), stored.end()) >= kCheckpointsMissed;
        },
        60))
        << "newest stored: step " << newest << "; committed before: " << committed;
    ASSERT_LT(newest, kSteps) << "the job ended before its driver came back";
    cluster_.StartDriver();
    EXPECT_TRUE(
        WaitUntil([&] { return cluster_.Status("job").last_checkpoint().step() >= newest; }, 30))
        << "the checkpoint of step " << newest << " never counted";
    ASSERT_TRUE(WaitUntil([&] { return Pids() == workers; }, 30))
        << "workers were restarted, or are not taken back";
  }
  EXPECT_EQ(cluster_.Status("job").attempt(), 1);
  ExpectTheSameBits();
}

// Every process of one machine.
class Machine {
 public:
  explicit Machine(pid_t agent) : processes_(DescendantsOf(agent, "")) {
    processes_.insert(processes_.begin(), agent);
  }

  void Freeze() const { Signal(SIGSTOP); }
  void Thaw() const { Signal(SIGCONT); }
  // All but the agent and its keeper, which go on.
  std::vector<pid_t> OfJobs() const { return DescendantsOf(processes_[0], "--link-fd"); }

 private:
  void Signal(int signal) const {
    for (const pid_t pid : processes_) ::kill(pid, signal);
  }
  std::vector<pid_t> processes_;
};

// Names and sizes of all that is below a directory.
std::map<std::string, uintmax_t> Listing(const std::string& directory) {
  std::map<std::string, uintmax_t> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    files[entry.path().string()] = entry.is_regular_file() ? entry.file_size() : 0;
  }
  return files;
}

// Checkpoints are deleted all the time here, by those who may.
TEST_F(AbsenceTest, MachinesThatThawAfterTheyWereReplacedChangeNothing) {
  std::vector<std::string> sets = LongJob(2);
  sets.push_back("fault.heartbeat_timeout=3s");
  StartJob(sets);
  const auto replace = [&](int frozen, int by, int64_t attempt) {
    Machine machine(cluster_.agent_pid(frozen));
    machine.Freeze();
    cluster_.StartAgent(by, 2);
    // On the new machine, and beyond what the frozen one knew.
    EXPECT_TRUE(WaitUntil(
        [&] {
          const Job job = cluster_.Status("job");
          return job.attempt() == attempt && job.state() == control::v1::JOB_STATE_RUNNING &&
                 job.last_checkpoint().attempt() == attempt;
        },
        90));
    const Job job = cluster_.Status("job");
    EXPECT_EQ(job.culprit().node_id(), absl::StrCat("n", frozen));
    EXPECT_EQ(job.culprit().failure_class(), telemetry::v1::FAILURE_CLASS_UNREACHABLE);
    return machine;
  };
  // Its processes of the old attempt are ended by its own agent, which is taken back.
  const auto thaw = [&](const Machine& machine, const std::string& name) {
    const std::vector<pid_t> old = machine.OfJobs();
    EXPECT_GE(old.size(), 2u);
    machine.Thaw();
    for (const pid_t pid : old) {
      EXPECT_TRUE(WaitUntil([pid] { return !IsAlive(pid); }, 30)) << name << " process " << pid;
    }
    EXPECT_TRUE(WaitUntil(
        [&] { return absl::StrContains(cluster_.Megascale({"status"}).out, name + "    alive"); },
        30))
        << cluster_.Megascale({"status"}).out;
  };
  const Machine first = replace(1, 2, 2);
  const Machine second = replace(2, 3, 3);
  ASSERT_LT(cluster_.Status("job").last_step(), kSteps * 2 / 3) << "too late to see what they do";
  thaw(first, "n1");
  ExpectTheSameBits();
  const auto before = Listing(checkpoints_);
  const Job ended = cluster_.Status("job");
  thaw(second, "n2");
  // A shard that its host was writing may still come to be, in a directory that nobody loads.
  const auto now = Listing(checkpoints_);
  EXPECT_TRUE(std::includes(now.begin(), now.end(), before.begin(), before.end()));
  const Job after = cluster_.Status("job");
  EXPECT_EQ(after.attempt(), 3);
  EXPECT_EQ(after.last_checkpoint().directory(), ended.last_checkpoint().directory());
  const auto kept = checkpoint::ListCheckpoints(checkpoints_);
  ASSERT_TRUE(kept.ok()) << kept.status();
  ASSERT_EQ(kept->size(), 2u);
  for (const auto& checkpoint : *kept) EXPECT_EQ(checkpoint.attempt(), 3);
  EXPECT_EQ(
      cluster_.Megascale({"checkpoint", "verify", after.last_checkpoint().directory()}).exit_code,
      0);
}

}  // namespace
}  // namespace megascale::e2e
