// Processes are killed in the middle of training; the job goes on by itself and ends with the bits
// of an undisturbed run.
#include <gtest/gtest.h>
#include <signal.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;

constexpr int64_t kSteps = 150;
constexpr int64_t kMiddle = 50;

struct Ended {
  std::string digest;
  std::vector<std::string> losses;
};

Ended EndOf(const Cluster& cluster, const std::string& job_id) {
  EXPECT_EQ(cluster.WaitForEnd(job_id), control::v1::JOB_STATE_SUCCEEDED);
  return {cluster.Digest(job_id), cluster.LossLog(job_id)};
}

// Two agents with two slots each, and the undisturbed run that others are compared with.
class FaultsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Cluster cluster;
    cluster.StartDriver();
    cluster.StartAgent(0, 2);
    cluster.StartAgent(1, 2);
    cluster.Submit("calm");
    calm_ = new Ended(EndOf(cluster, "calm"));
    EXPECT_EQ(calm_->losses.size(), static_cast<size_t>(kSteps));
  }
  static void TearDownTestSuite() { delete calm_; }

  void StartTwoAgents() {
    cluster_.StartDriver();
    cluster_.StartAgent(0, 2);
    cluster_.StartAgent(1, 2);
  }
  void SubmitAndReachTheMiddle() {
    cluster_.Submit("job");
    ASSERT_TRUE(cluster_.WaitForStep("job", kMiddle));
    before_ = cluster_.Status("job");
    ASSERT_LT(before_.last_step(), kSteps) << "the job ended before it could be disturbed";
  }
  void ExpectTheSameBits() {
    const Ended ended = EndOf(cluster_, "job");
    EXPECT_EQ(ended.digest, calm_->digest);
    EXPECT_EQ(ended.losses, calm_->losses);
  }

  static Ended* calm_;
  Cluster cluster_;
  Job before_;
};
Ended* FaultsTest::calm_ = nullptr;

TEST_F(FaultsTest, TheSameFourRanksOnOneAgentGiveTheSameBits) {
  cluster_.StartDriver();
  cluster_.StartAgent(0, 4);
  cluster_.Submit("job");
  ExpectTheSameBits();
}

TEST_F(FaultsTest, ControlAndTensorsOverTcpGiveTheSameBits) {
  cluster_.UseTcp();
  StartTwoAgents();
  cluster_.Submit("job");
  ExpectTheSameBits();
}

TEST_F(FaultsTest, AKilledWorkerIsReplacedAndNamed) {
  StartTwoAgents();
  SubmitAndReachTheMiddle();
  ASSERT_EQ(before_.ranks_size(), 4);
  ::kill(before_.ranks(2).status().pid(), SIGKILL);
  ExpectTheSameBits();
  const Job after = cluster_.Status("job");
  EXPECT_EQ(after.attempt(), before_.attempt() + 1);
  EXPECT_EQ(after.culprit().rank(), 2);
  EXPECT_EQ(after.culprit().node_id(), before_.ranks(2).node_id());
  for (const char* part : {"signal 9", "last instructions completed: "}) {
    EXPECT_NE(after.culprit().evidence().find(part), std::string::npos)
        << part << " is not in: " << after.culprit().evidence();
  }
}

TEST_F(FaultsTest, AKilledHostIsRestartedInTheSameAttempt) {
  StartTwoAgents();
  SubmitAndReachTheMiddle();
  const std::vector<pid_t> hosts = DescendantsOf(cluster_.agent_pid(0), "host --link-fd");
  ASSERT_EQ(hosts.size(), 1u);
  ::kill(hosts[0], SIGKILL);
  ExpectTheSameBits();
  EXPECT_EQ(cluster_.Status("job").attempt(), before_.attempt());
}

TEST_F(FaultsTest, AStoppedHostIsReplacedInTheSameAttempt) {
  StartTwoAgents();
  SubmitAndReachTheMiddle();
  const std::vector<pid_t> hosts = DescendantsOf(cluster_.agent_pid(1), "host --link-fd");
  ASSERT_EQ(hosts.size(), 1u);
  ::kill(hosts[0], SIGSTOP);
  ExpectTheSameBits();
  EXPECT_EQ(cluster_.Status("job").attempt(), before_.attempt());
  EXPECT_FALSE(IsAlive(hosts[0]));
}

TEST_F(FaultsTest, AKilledAgentTakesItsProcessesWithItAndTheJobResumesFromStorage) {
  StartTwoAgents();
  SubmitAndReachTheMiddle();
  const std::vector<pid_t> processes = DescendantsOf(cluster_.agent_pid(1), "");
  cluster_.KillAgent(1);
  for (const pid_t pid : processes) {
    EXPECT_TRUE(WaitUntil([pid] { return !IsAlive(pid); }, 10)) << pid;
  }
  cluster_.StartAgent(1, 2);
  ExpectTheSameBits();
  EXPECT_EQ(cluster_.Status("job").attempt(), before_.attempt() + 1);
}

TEST_F(FaultsTest, WorkersStepOnWhileTheDriverIsDownAndAreTakenBack) {
  StartTwoAgents();
  SubmitAndReachTheMiddle();
  cluster_.KillDriver();
  EXPECT_EQ(cluster_.Megascale({"status", "job"}).exit_code, 3);
  cluster_.StartDriver();
  ASSERT_TRUE(WaitUntil([&] { return cluster_.Status("job").ranks_size() == 4; }, 30));
  ExpectTheSameBits();
  const Job after = cluster_.Status("job");
  EXPECT_EQ(after.attempt(), before_.attempt());
  EXPECT_EQ(after.restarts(), before_.restarts());
}

TEST_F(FaultsTest, ADriverThatStaysAwayStopsNoWorker) {
  StartTwoAgents();
  SubmitAndReachTheMiddle();
  cluster_.KillDriver();
  std::set<pid_t> workers;
  for (const auto& rank : before_.ranks()) workers.insert(rank.status().pid());
  // They finish the whole job by themselves.
  EXPECT_TRUE(WaitUntil(
      [&] {
        for (const pid_t pid : workers) {
          if (IsAlive(pid)) return false;
        }
        return true;
      },
      90));
  cluster_.StartDriver();
  ExpectTheSameBits();
  EXPECT_EQ(cluster_.Status("job").attempt(), before_.attempt());
}

TEST_F(FaultsTest, AStoppedWorkerIsFoundHungAndNamed) {
  StartTwoAgents();
  SubmitAndReachTheMiddle();
  ::kill(before_.ranks(1).status().pid(), SIGSTOP);
  ExpectTheSameBits();
  const Job after = cluster_.Status("job");
  EXPECT_EQ(after.culprit().rank(), 1);
  EXPECT_EQ(after.culprit().failure_class(), telemetry::v1::FAILURE_CLASS_HUNG);
  EXPECT_NE(after.culprit().evidence().find("last instructions completed: "), std::string::npos)
      << after.culprit().evidence();
}

}  // namespace
}  // namespace megascale::e2e
