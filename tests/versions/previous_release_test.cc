// The program of the release before this one and the program of today in one cluster: the driver of
// one, the agents and the client of the other. A killed worker is replaced, and the bits are those
// of a calm run. MEGASCALE_PREVIOUS_PROGRAM is the program of that release; `./dev soak` builds it.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/e2e/cluster.h"

namespace megascale::versions {
namespace {

using control::v1::Job;
using e2e::Cluster;

constexpr int64_t kMiddle = 50;

struct Ended {
  std::string digest;
  std::vector<std::string> losses;
};

std::string PreviousProgram() {
  const char* path = std::getenv("MEGASCALE_PREVIOUS_PROGRAM");
  return path == nullptr ? "" : path;
}

class PreviousReleaseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    previous_ = PreviousProgram();
    ASSERT_FALSE(previous_.empty())
        << "run `./dev soak //tests/versions:previous_release_test`, or name the program of the "
           "release in tests/versions/PREVIOUS by MEGASCALE_PREVIOUS_PROGRAM";
  }

  void StartAgents(const std::string& program) {
    cluster_.UseProgram(program);
    cluster_.StartAgent(0, 2);
    cluster_.StartAgent(1, 2);
  }
  void StartDriver(const std::string& program) {
    cluster_.UseProgram(program);
    cluster_.StartDriver();
  }
  void SubmitAndReachTheMiddle(const std::string& client) {
    cluster_.UseProgram(client);
    cluster_.Submit("job");
    ASSERT_TRUE(cluster_.WaitForStep("job", kMiddle));
    before_ = cluster_.Status("job");
  }
  void KillAWorker() {
    ASSERT_EQ(before_.ranks_size(), 4);
    ::kill(before_.ranks(2).status().pid(), SIGKILL);
  }
  Ended End(const std::string& client) {
    EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
    cluster_.UseProgram(client);
    return {cluster_.Digest("job"), cluster_.LossLog("job")};
  }
  // Agents start the workers, so a program's agents give the bits of that program.
  void ExpectTheBitsOf(const std::string& program, const Ended& ended) {
    Cluster calm;
    calm.UseProgram(program);
    calm.StartDriver();
    calm.StartAgent(0, 2);
    calm.StartAgent(1, 2);
    calm.Submit("calm");
    ASSERT_EQ(calm.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);
    EXPECT_EQ(ended.digest, calm.Digest("calm"));
    EXPECT_EQ(ended.losses, calm.LossLog("calm"));
  }
  void ExpectOneRecovery() {
    const Job after = cluster_.Status("job");
    EXPECT_EQ(after.attempt(), before_.attempt() + 1);
    EXPECT_EQ(after.culprit().rank(), 2);
  }

  const std::string today_ = e2e::Program();
  std::string previous_;
  Cluster cluster_;
  Job before_;
};

TEST_F(PreviousReleaseTest, ItsDriverWorksWithAgentsOfToday) {
  StartDriver(previous_);
  StartAgents(today_);
  SubmitAndReachTheMiddle(today_);
  KillAWorker();
  const Ended ended = End(today_);
  ExpectOneRecovery();
  ExpectTheBitsOf(today_, ended);
  for (const std::vector<std::string>& command : {std::vector<std::string>{"list", "--limit", "1"},
                                                  {"status", "job"},
                                                  {"status"},
                                                  {"logs", "job"},
                                                  {"metrics", "job"},
                                                  {"nodes"}}) {
    const e2e::CommandResult shown = cluster_.Megascale(command);
    EXPECT_EQ(shown.exit_code, 0) << command[0] << ": " << shown.err;
    EXPECT_FALSE(shown.out.empty()) << command[0];
  }
}

TEST_F(PreviousReleaseTest, ItsAgentsWorkWithADriverOfToday) {
  StartDriver(today_);
  StartAgents(previous_);
  SubmitAndReachTheMiddle(previous_);
  KillAWorker();
  const Ended ended = End(previous_);
  ExpectOneRecovery();
  ExpectTheBitsOf(previous_, ended);
  const e2e::CommandResult list = cluster_.Megascale({"list"});
  EXPECT_TRUE(absl::StrContains(list.out, "job")) << list.out << list.err;
}

// The order of an upgrade in docs/versions.md: first the driver, then one agent after the other.
TEST_F(PreviousReleaseTest, AnUpgradeUnderARunningJobCostsOneRestartForEachAgent) {
  StartDriver(previous_);
  StartAgents(previous_);
  SubmitAndReachTheMiddle(previous_);
  cluster_.StopDriver();
  StartDriver(today_);
  ASSERT_TRUE(cluster_.WaitForStep("job", kMiddle + 10));
  EXPECT_EQ(cluster_.Status("job").attempt(), before_.attempt())
      << "the driver alone costs nothing";
  cluster_.UseProgram(today_);
  for (const int agent : {0, 1}) {
    ::kill(cluster_.agent_pid(agent), SIGTERM);
    EXPECT_EQ(cluster_.AwaitAgentExit(agent), 0);
    cluster_.StartAgent(agent, 2);
  }
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_LE(cluster_.Status("job").attempt(), before_.attempt() + 2);
}

}  // namespace
}  // namespace megascale::versions
