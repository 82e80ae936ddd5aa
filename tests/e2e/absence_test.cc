// Who was away comes back: a driver that is down again and again while its job makes checkpoints,
// and a machine that froze, was replaced, and thaws with processes of an attempt that is over.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/checkpoint/directory.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;

constexpr int kRanks = 4;
constexpr int kSteps = 700;
constexpr int kAbsences = 3;
// Checkpoints that finish while the driver is away.
constexpr int kCheckpointsMissed = 3;

std::vector<std::string> LongJob() {
  return {absl::StrCat("train.steps=", kSteps), "checkpoint.keep=100"};
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
    cluster.Submit("calm", LongJob());
    ASSERT_EQ(cluster.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);
    digest_ = new std::string(cluster.Digest("calm"));
    losses_ = new std::vector<std::string>(cluster.LossLog("calm"));
  }
  static void TearDownTestSuite() {
    delete digest_;
    delete losses_;
  }

  void StartJob() {
    cluster_.StartDriver();
    cluster_.StartAgent(0, 2);
    cluster_.StartAgent(1, 2);
    cluster_.Submit("job", LongJob());
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
  StartJob();
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

TEST_F(AbsenceTest, AMachineThatThawsAfterItWasReplacedChangesNothing) {
  StartJob();
  std::vector<pid_t> frozen = DescendantsOf(cluster_.agent_pid(1), "");
  frozen.insert(frozen.begin(), cluster_.agent_pid(1));
  for (const pid_t pid : frozen) ::kill(pid, SIGSTOP);
  cluster_.StartAgent(2, 2);
  // On the new machine, and beyond what the frozen one knew.
  int64_t step = 0;
  ASSERT_TRUE(WaitUntil(
      [&] {
        const Job job = cluster_.Status("job");
        step = job.last_step();
        return job.attempt() == 2 && job.state() == control::v1::JOB_STATE_RUNNING &&
               job.last_checkpoint().attempt() == 2;
      },
      90));
  ASSERT_LT(step, kSteps / 2) << "too late to see what a thawed machine does";
  for (const pid_t pid : frozen) ::kill(pid, SIGCONT);
  // Its processes of the old attempt are ended by its own agent, which is taken back.
  for (const pid_t pid : DescendantsOf(cluster_.agent_pid(1), "worker --link-fd")) {
    EXPECT_TRUE(WaitUntil([pid] { return !IsAlive(pid); }, 30)) << "worker " << pid;
  }
  ExpectTheSameBits();
  const Job after = cluster_.Status("job");
  EXPECT_EQ(after.attempt(), 2);
  EXPECT_EQ(after.culprit().node_id(), "n1");
  EXPECT_EQ(after.culprit().failure_class(), telemetry::v1::FAILURE_CLASS_UNREACHABLE);
  EXPECT_EQ(
      cluster_.Megascale({"checkpoint", "verify", after.last_checkpoint().directory()}).exit_code,
      0);
}

}  // namespace
}  // namespace megascale::e2e
