// A driver that is down again and again, while its job makes steps and checkpoints. In `./dev soak`
// for 30 s each time; minutes of absence are simulated in tests/sim/storm_test.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <iterator>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/clock.h"
#include "runtime/checkpoint/directory.h"
#include "tests/e2e/cluster.h"
#include "tests/soak.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;

constexpr int kRanks = 4;
const int kSteps = IsSoak() ? 700 : 250;
const int kAbsences = IsSoak() ? 3 : 1;
// The minimum number of checkpoints that finish during an absence.
constexpr int kCheckpointsMissed = 3;

// The minimum length of an absence; it lasts until kCheckpointsMissed checkpoints have finished.
absl::Duration Absence() { return IsSoak() ? absl::Seconds(30) : absl::Seconds(3); }

absl::Duration Now() { return base::RealClock().Monotonic(); }

// Returns the steps of which every rank's shard is stored.
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

std::set<int32_t> PidsOf(const Job& job) {
  std::set<int32_t> pids;
  for (const auto& rank : job.ranks()) pids.insert(rank.status().pid());
  return pids;
}

// Lets a worker run for moments only, so that its job has steps left at `end`.
void HoldBackUntil(pid_t worker, absl::Duration end) {
  while (Now() < end) {
    ::kill(worker, SIGSTOP);
    absl::SleepFor(absl::Milliseconds(490));
    ::kill(worker, SIGCONT);
    absl::SleepFor(absl::Milliseconds(10));
  }
}

TEST(DriverAbsenceTest, StepsAndCheckpointsGoOnAndCountWhenItIsBack) {
  Cluster cluster;
  cluster.StartDriver();
  cluster.StartAgent(0, 2);
  cluster.StartAgent(1, 2);
  const std::string length = absl::StrCat("train.steps=", kSteps);
  cluster.Submit("calm", {length});
  ASSERT_EQ(cluster.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);
  cluster.Submit("job", {length});
  ASSERT_TRUE(cluster.WaitForStep("job", 30));
  const std::set<int32_t> workers = PidsOf(cluster.Status("job"));
  ASSERT_EQ(workers.size(), static_cast<size_t>(kRanks));
  const std::string checkpoints = cluster.checkpoints("job");

  for (int absence = 0; absence < kAbsences; ++absence) {
    const int64_t committed = cluster.Status("job").last_checkpoint().step();
    cluster.KillDriver();
    const absl::Duration back = Now() + Absence();
    std::set<int64_t> stored;
    ASSERT_TRUE(WaitUntil(
        [&] {
          stored = StoredSteps(checkpoints);
          return std::distance(stored.upper_bound(committed), stored.end()) >= kCheckpointsMissed;
        },
        60))
        << stored.size() << " steps are stored; committed before: " << committed;
    HoldBackUntil(*workers.begin(), back);
    const int64_t newest = *StoredSteps(checkpoints).rbegin();
    ASSERT_LT(newest, kSteps) << "the job ended before its driver came back";
    cluster.StartDriver();
    EXPECT_TRUE(
        WaitUntil([&] { return cluster.Status("job").last_checkpoint().step() >= newest; }, 30))
        << "the checkpoint of step " << newest << " never counted";
    ASSERT_TRUE(WaitUntil([&] { return PidsOf(cluster.Status("job")) == workers; }, 30))
        << "workers were restarted, or are not taken back";
  }
  EXPECT_EQ(cluster.Status("job").attempt(), 1);
  ASSERT_EQ(cluster.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster.Digest("job"), cluster.Digest("calm"));
  EXPECT_EQ(cluster.LossLog("job"), cluster.LossLog("calm"));
}

}  // namespace
}  // namespace megascale::e2e
