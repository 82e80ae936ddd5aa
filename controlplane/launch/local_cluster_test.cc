#include "controlplane/launch/local_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"

namespace megascale::launch {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(30);

bool WaitUntil(const std::function<bool()>& condition) {
  const absl::Duration end = base::RealClock().Monotonic() + kDeadline;
  while (!condition()) {
    if (base::RealClock().Monotonic() > end) return false;
    ::poll(nullptr, 0, 5);
  }
  return true;
}

bool IsGone(pid_t pid) {
  const auto stat = base::ReadFile(absl::StrCat("/proc/", pid, "/stat"), 1 << 16);
  return !stat.ok() || stat->at(stat->rfind(')') + 2) == 'Z';
}

pid_t PidIn(const std::string& path) {
  pid_t pid = 0;
  const bool read = absl::SimpleAtoi(base::ReadFile(path, 100).value_or(""), &pid);
  return read ? pid : 0;
}

class LocalClusterTest : public testing::Test {
 protected:
  LocalClusterTest() {
    std::string path = "/tmp/ms-XXXXXX";
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    options_.program = absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"),
                                    "/controlplane/launch/testing/test_child");
    options_.num_agents = 2;
    options_.slots_per_agent = 2;
    options_.state_directory = directory_ + "/state";
    options_.run_directory = directory_ + "/run";
    options_.on_restart = [this](const ClusterRestart& restart) {
      std::lock_guard<std::mutex> lock(mutex_);
      restarts_.push_back(restart);
    };
  }
  ~LocalClusterTest() override { std::filesystem::remove_all(directory_); }

  std::string Run(const std::string& path) const { return absl::StrCat(directory_, "/run/", path); }

  // Process ids of driver and agents, once all have started.
  std::vector<pid_t> AwaitPids() const {
    std::vector<pid_t> pids;
    for (const char* path : {"driver.pid", "n0/pid", "n1/pid"}) {
      EXPECT_TRUE(WaitUntil([&] { return PidIn(Run(path)) > 0; })) << path;
      pids.push_back(PidIn(Run(path)));
    }
    return pids;
  }

  std::vector<ClusterRestart> restarts() {
    std::lock_guard<std::mutex> lock(mutex_);
    return restarts_;
  }

  std::string directory_;
  LocalClusterOptions options_;
  std::mutex mutex_;
  std::vector<ClusterRestart> restarts_;
};

TEST_F(LocalClusterTest, StopEndsAgentsThenTheDriverAndRemovesTheRunDirectory) {
  auto cluster = LocalCluster::Start(options_);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ((*cluster)->driver_address(), "unix:" + Run("driver.sock"));
  const std::vector<pid_t> pids = AwaitPids();
  (*cluster)->Stop();
  for (const pid_t pid : pids) EXPECT_TRUE(IsGone(pid));
  EXPECT_FALSE(std::filesystem::exists(Run("")));
  EXPECT_EQ(base::ReadFile(options_.state_directory + "/logs/driver.log", 1000).value_or(""),
            "0 agents are left\n");
  EXPECT_THAT(restarts(), testing::IsEmpty());
}

TEST_F(LocalClusterTest, RestartsWhatDies) {
  auto cluster = LocalCluster::Start(options_);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::vector<pid_t> pids = AwaitPids();
  ::kill(pids[1], SIGKILL);
  EXPECT_TRUE(WaitUntil([&] { return PidIn(Run("n0/pid")) != pids[1]; }));
  ::kill(pids[0], SIGKILL);
  EXPECT_TRUE(WaitUntil([&] { return PidIn(Run("driver.pid")) != pids[0]; }));
  EXPECT_EQ(PidIn(Run("n1/pid")), pids[2]);
  ASSERT_EQ(restarts().size(), 2u);
  EXPECT_EQ(restarts()[0].process, "agent n0");
  EXPECT_EQ(restarts()[0].how, "killed by signal 9 (Killed)");
  EXPECT_EQ(restarts()[0].backoff, absl::Milliseconds(200));
  EXPECT_EQ(restarts()[1].process, "driver");
}

TEST_F(LocalClusterTest, ThreeDriversThatEndBeforeTheyListenAreEnough) {
  std::filesystem::create_directories(options_.state_directory + "/logs");
  std::ofstream(options_.state_directory + "/logs/driver.log") << "megascale: an old error\n";
  options_.machine_tests = "refused";
  auto cluster = LocalCluster::Start(options_);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE(WaitUntil([&] { return restarts().size() >= 3; }));
  const std::vector<ClusterRestart> ended = restarts();
  for (const ClusterRestart& restart : ended) {
    EXPECT_EQ(restart.process, "driver");
    EXPECT_EQ(restart.how, "exited with status 1");
  }
  EXPECT_EQ(ended[0].backoff, absl::Milliseconds(200));
  EXPECT_EQ(ended[0].error, "");
  EXPECT_EQ(ended[1].backoff, absl::Milliseconds(400));
  EXPECT_EQ(ended[2].backoff, absl::InfiniteDuration());
  EXPECT_EQ(ended[2].error, "start 3: the log is damaged");
  (*cluster)->Stop();
  EXPECT_EQ(restarts().size(), 3u);
}

// The driver of a cluster that was killed may have the log open for a moment.
TEST_F(LocalClusterTest, ADriverIsStartedAgainWhenWhatStoppedItMayHavePassed) {
  options_.machine_tests = "refused twice";
  auto cluster = LocalCluster::Start(options_);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  AwaitPids();
  const std::vector<ClusterRestart> ended = restarts();
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_EQ(ended[1].process, "driver");
  EXPECT_EQ(ended[1].backoff, absl::Milliseconds(400));
}

TEST_F(LocalClusterTest, ThreeAgentsThatEndAtTheirStartAreEnough) {
  options_.num_agents = 1;
  for (const int slots : {91, 99}) {
    options_.slots_per_agent = slots;
    auto cluster = LocalCluster::Start(options_);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    ASSERT_TRUE(WaitUntil([&] { return restarts().size() >= 3; }));
    const std::vector<ClusterRestart> ended = restarts();
    for (const ClusterRestart& restart : ended) {
      EXPECT_EQ(restart.process, "agent n0");
      EXPECT_EQ(restart.how, slots == 99 ? "killed by signal 6 (Aborted)" : "exited with status 1");
    }
    EXPECT_EQ(ended[1].backoff, absl::Milliseconds(400));
    EXPECT_EQ(ended[1].error, "");
    EXPECT_EQ(ended[2].backoff, absl::InfiniteDuration());
    EXPECT_EQ(ended[2].error, "too many slots");
    (*cluster)->Stop();
    EXPECT_EQ(restarts().size(), 3u);
    restarts_.clear();
  }
}

TEST_F(LocalClusterTest, AnAgentThatIsKilledAtItsStartIsStartedAgainAndAgain) {
  options_.num_agents = 1;
  auto cluster = LocalCluster::Start(options_);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  pid_t pid = 0;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(WaitUntil([&] { return PidIn(Run("n0/pid")) > 0 && PidIn(Run("n0/pid")) != pid; }));
    pid = PidIn(Run("n0/pid"));
    ::kill(pid, SIGKILL);
  }
  ASSERT_TRUE(WaitUntil([&] { return restarts().size() == 4; }));
  EXPECT_LT(restarts()[3].backoff, absl::InfiniteDuration());
}

TEST_F(LocalClusterTest, NothingIsLeftWhenTheSupervisorIsKilled) {
  const pid_t supervisor = ::fork();
  if (supervisor == 0) {
    auto cluster = LocalCluster::Start(options_);
    for (;;) ::pause();
  }
  const std::vector<pid_t> pids = AwaitPids();
  ::kill(supervisor, SIGKILL);
  ::waitpid(supervisor, nullptr, 0);
  for (const pid_t pid : pids) EXPECT_TRUE(WaitUntil([&] { return IsGone(pid); }));
  EXPECT_TRUE(WaitUntil([&] { return !std::filesystem::exists(Run("")); }));
}

TEST_F(LocalClusterTest, MakesAShortOwnerOnlyRunDirectoryOfItsOwn) {
  options_.run_directory.clear();
  auto cluster = LocalCluster::Start(options_);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::string path = (*cluster)->run_directory();
  EXPECT_LE(path.size(), 70u);
  EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms::owner_all);
  cluster->reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(LocalClusterTest, RefusesARunDirectoryThatIsTooLongOrNotEmpty) {
  options_.run_directory = absl::StrCat(directory_, "/", std::string(80, 'x'));
  EXPECT_EQ(LocalCluster::Start(options_).status().code(), absl::StatusCode::kFailedPrecondition);
  options_.run_directory = directory_ + "/full";
  std::filesystem::create_directories(options_.run_directory + "/precious");
  EXPECT_EQ(LocalCluster::Start(options_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(std::filesystem::exists(options_.run_directory + "/precious"));
  options_.program = "/no/such/program";
  EXPECT_EQ(LocalCluster::Start(options_).status().code(), absl::StatusCode::kNotFound);
}

TEST(RestartBackoffTest, DoublesToFiveSecondsAndStartsOverAfterALongLife) {
  RestartBackoff backoff;
  std::vector<absl::Duration> waits;
  for (int i = 0; i < 7; ++i) waits.push_back(backoff.OnDeath(absl::Seconds(1)));
  EXPECT_THAT(waits, testing::ElementsAre(absl::Seconds(0.2), absl::Seconds(0.4),
                                          absl::Seconds(0.8), absl::Seconds(1.6),
                                          absl::Seconds(3.2), absl::Seconds(5), absl::Seconds(5)));
  EXPECT_EQ(backoff.OnDeath(absl::Seconds(10)), absl::Seconds(0.2));
  EXPECT_EQ(backoff.times_in_a_row(), 1);
}

}  // namespace
}  // namespace megascale::launch
