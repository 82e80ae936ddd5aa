// Processes are killed in the middle of training; the job goes on by itself and ends with the bits
// of an undisturbed run.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/data/tokenizer/testing/letters_tokenizer.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;

constexpr int64_t kSteps = 70;
constexpr int64_t kMiddle = 25;  // after the first checkpoint

struct Ended {
  std::string digest;
  std::vector<std::string> losses;
};

Ended EndOf(const Cluster& cluster, const std::string& job_id) {
  EXPECT_EQ(cluster.WaitForEnd(job_id), control::v1::JOB_STATE_SUCCEEDED);
  return {cluster.Digest(job_id), cluster.LossLog(job_id)};
}

// The test's job, shorter.
void SubmitTo(const Cluster& cluster, const std::string& job_id,
              std::vector<std::string> sets = {}) {
  sets.insert(sets.end(), {absl::StrCat("train.steps=", kSteps), "train.micro_batch_size=4"});
  cluster.Submit(job_id, sets);
}

// Takes all locks of a cache of tokens.
std::vector<base::UniqueFd> LockAllBelow(const std::string& cache) {
  std::vector<base::UniqueFd> locks;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cache)) {
    if (entry.path().filename() != "lock") continue;
    locks.emplace_back(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_EQ(::flock(locks.back().get(), LOCK_EX), 0) << entry.path();
  }
  return locks;
}

// Returns whether the process has begun to decide itself what SIGTERM does.
bool HoldsSigtermBack(pid_t pid) {
  const std::string status =
      base::ReadFile(absl::StrCat("/proc/", pid, "/status"), 1 << 16).value_or("");
  const size_t at = status.find("SigBlk:\t");
  if (at == std::string::npos) return false;
  return (std::stoull(status.substr(at + 8, 16), nullptr, 16) >> (SIGTERM - 1) & 1) != 0;
}

// Returns what all host processes of the job "job" below `folder` wrote.
std::string HostLogs(const std::string& folder) {
  std::string logs;
  std::error_code gone;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, gone)) {
    const std::string path = entry.path().string();
    if (!absl::StrContains(path, "/job/") || !absl::StrContains(path, "/host")) continue;
    absl::StrAppend(&logs, base::ReadFile(path, 1 << 20).value_or(""));
  }
  return logs;
}

// Two agents with two slots each, paced, so that a job lasts long enough to be disturbed; and a run
// without faults to compare others with.
class FaultsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Cluster cluster;
    cluster.StartDriver();
    cluster.StartAgent(0, 2);
    cluster.StartAgent(1, 2);
    SubmitTo(cluster, "calm");
    calm_ = new Ended(EndOf(cluster, "calm"));
    EXPECT_EQ(calm_->losses.size(), static_cast<size_t>(kSteps));
  }
  static void TearDownTestSuite() { delete calm_; }

  void StartTwoAgents() {
    cluster_.PaceJobs();
    cluster_.StartDriver();
    cluster_.StartAgent(0, 2);
    cluster_.StartAgent(1, 2);
  }
  void StartFourAgents() {
    cluster_.PaceJobs();
    cluster_.StartDriver();
    for (int i = 0; i < 4; ++i) cluster_.StartAgent(i, 1);
  }
  void SubmitAndReachTheMiddle() {
    SubmitTo(cluster_, "job");
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
  SubmitTo(cluster_, "job");
  ExpectTheSameBits();
}

TEST_F(FaultsTest, ControlAndTensorsOverTcpGiveTheSameBits) {
  cluster_.UseTcp();
  StartTwoAgents();
  SubmitTo(cluster_, "job");
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

TEST_F(FaultsTest, SigtermToAWorkerIsAFailureThatNamesTheSignal) {
  StartTwoAgents();
  SubmitAndReachTheMiddle();
  ::kill(before_.ranks(3).status().pid(), SIGTERM);
  ExpectTheSameBits();
  const Job after = cluster_.Status("job");
  EXPECT_EQ(after.attempt(), before_.attempt() + 1);
  EXPECT_EQ(after.attempt_reason(), "RankExited");
  EXPECT_EQ(after.culprit().rank(), 3);
  EXPECT_NE(after.culprit().evidence().find("killed by signal 15 (Terminated)"), std::string::npos)
      << after.culprit().evidence();
}

// Workers have the limits of their keeper. 30 are too few for their peers, 7 to start them.
TEST_F(FaultsTest, ARankWithoutDescriptorsFailsAtOnceAndIsTheCause) {
  StartTwoAgents();
  ASSERT_TRUE(cluster_.WaitForAgents(2));
  const std::vector<pid_t> keepers = DescendantsOf(cluster_.agent_pid(1), "--node-id n1");
  ASSERT_EQ(keepers.size(), 1u);
  const std::vector<std::pair<rlim_t, std::string>> reasons = {
      {30, "descriptors: rank 2 needs "},
      {7, "too many open files: the limit of the process keeper (process "}};
  for (const auto& [limit, reason] : reasons) {
    const rlimit low = {limit, limit};
    ASSERT_EQ(::prlimit(keepers[0], RLIMIT_NOFILE, &low, nullptr), 0);
    const std::string job_id = absl::StrCat("limit-", limit);
    SubmitTo(cluster_, job_id, {"fault.max_restarts_without_progress=1"});
    EXPECT_EQ(cluster_.WaitForEnd(job_id, 60), control::v1::JOB_STATE_FAILED);
    const Job after = cluster_.Status(job_id);
    EXPECT_EQ(after.culprit().node_id(), "n1") << after.message();
    EXPECT_NE(after.message().find(reason), std::string::npos) << after.message();
  }
}

TEST_F(FaultsTest, AJobThatCrashesWhereItCrashedBeforeFailsWithItsFirstRanksLastLines) {
  StartTwoAgents();
  // There is no checkpoint, so every attempt begins with initial weights.
  SubmitTo(cluster_, "job",
           {"checkpoint.interval=1000", "fault.max_restarts_without_progress=2",
            "fault.restart_backoff=100ms"});
  for (int64_t attempt = 1; attempt <= 4; ++attempt) {
    const int64_t step = attempt == 1 ? kMiddle : 3;
    Job job;
    ASSERT_TRUE(WaitUntil(
        [&] {
          job = cluster_.Status("job");
          return job.attempt() == attempt && job.last_step() >= step && job.ranks_size() == 4;
        },
        60));
    ASSERT_TRUE(attempt == 1 || job.last_step() < kMiddle) << "it got further than before";
    ::kill(job.ranks(1).status().pid(), SIGABRT);
  }
  ASSERT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_FAILED);
  const Job after = cluster_.Status("job");
  EXPECT_EQ(after.reason(), "RankExited");
  EXPECT_EQ(after.message(),
            "gave up after 3 attempts in a row without progress; the last: rank 1 on n0: killed by "
            "signal 6 (Aborted)");
  EXPECT_EQ(after.attempt(), 4);
  EXPECT_EQ(after.culprit().rank(), 1);
  EXPECT_NE(after.culprit().evidence().find("\nits last lines:\n"), std::string::npos);
  const std::string shown = cluster_.Megascale({"status", "job"}).out;
  EXPECT_NE(shown.find("\n  its last lines:\n"), std::string::npos) << shown;
  EXPECT_NE(shown.find("attempt 4 from step 0"), std::string::npos) << shown;
}

TEST_F(FaultsTest, SigtermToAnAgentDrainsItAndTheJobGoesOnElsewhere) {
  StartTwoAgents();
  SubmitAndReachTheMiddle();
  cluster_.StartAgent(2, 2);
  const std::vector<pid_t> processes = DescendantsOf(cluster_.agent_pid(1), "");
  ::kill(cluster_.agent_pid(1), SIGTERM);
  EXPECT_EQ(cluster_.AwaitAgentExit(1), 0);
  for (const pid_t pid : processes) EXPECT_FALSE(IsAlive(pid)) << pid;
  ExpectTheSameBits();
  const Job after = cluster_.Status("job");
  EXPECT_EQ(after.attempt(), before_.attempt() + 1);
  EXPECT_EQ(after.attempt_reason(), "NodeDraining");
  EXPECT_FALSE(after.has_culprit()) << after.culprit().evidence();
  for (const auto& rank : after.ranks()) EXPECT_NE(rank.node_id(), "n1");
}

// As scancel of Slurm does, with all machines of a job.
TEST_F(FaultsTest, SigtermToAllProcessesOfAllAgentsCostsNoStep) {
  StartTwoAgents();
  SubmitAndReachTheMiddle();
  std::vector<pid_t> processes;
  for (const int agent : {0, 1}) {
    const std::vector<pid_t> below = DescendantsOf(cluster_.agent_pid(agent), "");
    processes.insert(processes.end(), below.begin(), below.end());
  }
  EXPECT_EQ(processes.size(), 8u) << "a keeper, a host and two workers each";
  for (const pid_t pid : processes) ::kill(pid, SIGTERM);
  for (const int agent : {0, 1}) ::kill(cluster_.agent_pid(agent), SIGTERM);
  for (const int agent : {0, 1}) EXPECT_EQ(cluster_.AwaitAgentExit(agent), 0);
  for (const pid_t pid : processes) EXPECT_FALSE(IsAlive(pid)) << pid;
  const Job waiting = cluster_.Status("job");
  EXPECT_EQ(waiting.state(), control::v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(waiting.reason(), "WaitingForSlots");
  EXPECT_EQ(waiting.attempt(), before_.attempt());
  EXPECT_EQ(waiting.last_checkpoint().step(), waiting.last_step());
  EXPECT_GT(waiting.last_step(), before_.last_checkpoint().step());
  for (const int agent : {0, 1}) cluster_.StartAgent(agent, 2);
  ExpectTheSameBits();
  const Job after = cluster_.Status("job");
  EXPECT_EQ(after.attempt(), before_.attempt() + 1);
  EXPECT_FALSE(after.has_culprit()) << after.culprit().evidence();
}

// The processes that look at machines before a job may take long.
TEST_F(FaultsTest, SigtermToAllProcessesDuringAPreflightBlamesNoMachine) {
  const std::string cache = cluster_.directory() + "/tokens";
  const std::vector<std::string> sets = {"data.tokenizer_vocab_size=320",
                                         "data.token_cache=" + cache};
  StartTwoAgents();
  SubmitTo(cluster_, "before", sets);
  const Ended before = EndOf(cluster_, "before");
  std::vector<base::UniqueFd> locks = LockAllBelow(cache);  // preflights wait for them
  ASSERT_FALSE(locks.empty());
  SubmitTo(cluster_, "job", sets);
  std::vector<pid_t> processes;
  for (const int agent : {0, 1}) {
    const pid_t pid = cluster_.agent_pid(agent);
    const auto is_ready = [&] {
      const std::vector<pid_t> hosts = DescendantsOf(pid, "host --link-fd");
      return !hosts.empty() && HoldsSigtermBack(hosts[0]);
    };
    ASSERT_TRUE(WaitUntil(is_ready, 60));
    const std::vector<pid_t> below = DescendantsOf(pid, "");
    processes.insert(processes.end(), below.begin(), below.end());
  }
  // The driver does not answer before the processes have had to know what to do.
  ::kill(cluster_.driver_pid(), SIGSTOP);
  for (const pid_t pid : processes) ::kill(pid, SIGTERM);
  for (const int agent : {0, 1}) ::kill(cluster_.agent_pid(agent), SIGTERM);
  for (const int agent : {0, 1}) {
    const auto log = [&] { return HostLogs(absl::StrCat(cluster_.directory(), "/n", agent)); };
    EXPECT_TRUE(
        WaitUntil([&] { return absl::StrContains(log(), "SIGTERM: the agent drains"); }, 30))
        << log();
  }
  ::kill(cluster_.driver_pid(), SIGCONT);
  for (const int agent : {0, 1}) EXPECT_EQ(cluster_.AwaitAgentExit(agent), 0);
  const Job waiting = cluster_.Status("job");
  EXPECT_EQ(waiting.reason(), "WaitingForSlots") << waiting.message();
  EXPECT_FALSE(waiting.has_culprit()) << waiting.culprit().evidence();
  locks.clear();
  for (const int agent : {0, 1}) cluster_.StartAgent(agent, 2);
  EXPECT_EQ(EndOf(cluster_, "job").digest, before.digest);
  EXPECT_EQ(cluster_.Status("job").attempt_reason(), "NodeDraining");
}

TEST_F(FaultsTest, SigtermToTheDriverEndsItCleanlyWhileWorkersGoOn) {
  StartTwoAgents();
  SubmitAndReachTheMiddle();
  cluster_.StopDriver();
  for (const auto& rank : before_.ranks()) EXPECT_TRUE(IsAlive(rank.status().pid()));
  cluster_.StartDriver();
  ExpectTheSameBits();
  EXPECT_EQ(cluster_.Status("job").attempt(), before_.attempt());
}

TEST_F(FaultsTest, AnEvictedNodesJobGoesOnElsewhereAndTheDriverRemembersTheEviction) {
  StartTwoAgents();
  SubmitAndReachTheMiddle();
  const CommandResult evicted = cluster_.Megascale({"evict", "n0", "--reason", "memory errors"});
  EXPECT_EQ(evicted.exit_code, 0) << evicted.err;
  EXPECT_EQ(evicted.out, "n0  leaving (memory errors), 2 of 2 slots used\n");
  ASSERT_TRUE(WaitUntil(
      [&] {
        return cluster_.Megascale({"status"}).out.find("evicted (memory errors)") !=
               std::string::npos;
      },
      60));
  const std::string waits =
      "needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots; 1 node offers 2 (n1 2); n0 is evicted";
  EXPECT_TRUE(WaitUntil([&] { return cluster_.Status("job").message() == waits; }, 60))
      << cluster_.Status("job").message();
  EXPECT_TRUE(DescendantsOf(cluster_.agent_pid(0), "worker --link-fd").empty());
  cluster_.KillDriver();
  cluster_.StartDriver();
  EXPECT_NE(cluster_.Megascale({"status"}).out.find("evicted (memory errors)"), std::string::npos);
  cluster_.StartAgent(2, 2);
  ExpectTheSameBits();
  const Job after = cluster_.Status("job");
  EXPECT_EQ(after.attempt(), before_.attempt() + 1);
  EXPECT_EQ(after.attempt_reason(), "NodeEvicted");
  EXPECT_FALSE(after.has_culprit()) << after.culprit().evidence();
  for (const auto& rank : after.ranks()) EXPECT_NE(rank.node_id(), "n0");
  EXPECT_EQ(cluster_.Megascale({"uncordon", "n0"}).out, "n0  alive, 0 of 2 slots used\n");
  const CommandResult unknown = cluster_.Megascale({"evict", "n11"});
  EXPECT_EQ(unknown.exit_code, 4);
  EXPECT_EQ(unknown.err, "megascale: node n11: there is no such node; did you mean n1?\n");
}

// The losses on held-out text are among the bits that are compared.
TEST_F(FaultsTest, AWorkerKilledInAnEvaluationChangesNoBit) {
  cluster_.PaceJobs();
  StartTwoAgents();
  const std::vector<std::string> sets = {"train.steps=20", "train.micro_batch_size=4",
                                         "train.eval_interval=1", "train.eval_batches=4"};
  cluster_.Submit("calm", sets);
  const Ended calm = EndOf(cluster_, "calm");
  for (const std::string& line : calm.losses) EXPECT_TRUE(absl::StrContains(line, "held out"));
  cluster_.Submit("job", sets);
  ASSERT_TRUE(cluster_.WaitForStep("job", 4));
  const auto evaluates = [&] {
    before_ = cluster_.Status("job");
    return absl::StrContains(before_.ranks(2).status().doing(), "evaluat");
  };
  ASSERT_TRUE(WaitUntil(evaluates, 60)) << "no evaluation was seen";
  ::kill(before_.ranks(2).status().pid(), SIGKILL);
  const Ended ended = EndOf(cluster_, "job");
  EXPECT_EQ(ended.losses, calm.losses);
  EXPECT_EQ(ended.digest, calm.digest);
  EXPECT_EQ(cluster_.Status("job").attempt(), 2);
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

// The other ranks connect to each other, or are about to, and see hang-ups from all sides.
TEST_F(FaultsTest, AnAgentKilledAsTheFirstTensorSocketAppearsEndsNoJob) {
  StartFourAgents();
  SubmitTo(cluster_, "job");
  ASSERT_TRUE(cluster_.WaitForSockets(0));
  cluster_.KillAgent(2);
  cluster_.StartAgent(2, 1);
  ExpectTheSameBits();
  EXPECT_EQ(cluster_.Status("job").attempt(), 2);
}

TEST_F(FaultsTest, AStoppedWorkerWhoseAgentEndsIsTheCause) {
  StartFourAgents();
  SubmitAndReachTheMiddle();
  ASSERT_EQ(before_.ranks_size(), 4);
  const std::string node_id = before_.ranks(1).node_id();
  ASSERT_EQ(::kill(before_.ranks(1).status().pid(), SIGSTOP), 0);
  ASSERT_TRUE(WaitUntil(
      [&] {
        const Job job = cluster_.Status("job");
        return job.ranks_size() == 4 && job.ranks(1).status().alive_age_seconds() > 0.4;
      },
      60));
  const int agent = node_id.back() - '0';
  cluster_.KillAgent(agent);
  cluster_.StartAgent(agent, 1);
  ExpectTheSameBits();
  const Job after = cluster_.Status("job");
  EXPECT_EQ(after.attempt(), before_.attempt() + 1);
  EXPECT_EQ(after.culprit().node_id(), node_id) << after.culprit().evidence();
}

// As on a cloned machine, whose host name is the default id.
TEST_F(FaultsTest, ASecondAgentWithTheIdOfAHealthyOneIsRefusedAndTheJobGoesOn) {
  StartTwoAgents();
  SubmitTo(cluster_, "job");
  ASSERT_TRUE(cluster_.WaitForStep("job", 5));
  const std::string log = cluster_.directory() + "/clone.log";
  const pid_t clone = Spawn({Program(), "agent", "--driver", cluster_.address(), "--slots", "2",
                             "--node-id", "n1", "--run-dir", cluster_.directory() + "/clone"},
                            log);
  EXPECT_TRUE(WaitUntil(
      [&] {
        return absl::StrContains(base::ReadFile(log, 1 << 20).value_or(""),
                                 "has this node id and is healthy, and this agent has another key");
      },
      30));
  ExpectTheSameBits();
  EXPECT_EQ(cluster_.Status("job").attempt(), 1);
  EXPECT_TRUE(IsAlive(clone)) << "it waits";
  KillAndReap(clone);
}

TEST_F(FaultsTest, WorkersStepOnWhileTheDriverIsDownAndAreTakenBack) {
  StartTwoAgents();
  SubmitAndReachTheMiddle();
  cluster_.KillDriver();
  EXPECT_EQ(cluster_.Megascale({"status", "job", "--retry-for", "0s"}).exit_code, 3);
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

TEST_F(FaultsTest, AnAgentThatIsPausedForLessThanItsTimeoutCausesNoRecovery) {
  cluster_.SetDriverFlags({"--node-timeout", "60s"});
  StartTwoAgents();
  // Only the driver decides whether a machine is lost, however short the job's own limits are.
  SubmitTo(cluster_, "job", {"fault.heartbeat_timeout=2s"});
  ASSERT_TRUE(cluster_.WaitForStep("job", kMiddle));
  ::kill(cluster_.agent_pid(1), SIGSTOP);
  const auto is_silent = [&] {
    const std::string out = cluster_.Megascale({"status"}).out;
    return out.find("6s ago") != std::string::npos;  // longer than the default limit
  };
  EXPECT_TRUE(WaitUntil(is_silent, 60)) << cluster_.Megascale({"status"}).out;
  ::kill(cluster_.agent_pid(1), SIGCONT);
  ExpectTheSameBits();
  EXPECT_EQ(cluster_.Status("job").attempt(), 1);
}

TEST_F(FaultsTest, AStoppedWorkerIsFoundHungAndNamedWithWhatItStoodIn) {
  StartTwoAgents();
  SubmitAndReachTheMiddle();
  const pid_t pid = before_.ranks(1).status().pid();
  std::string stood_in;
  ASSERT_TRUE(WaitUntil(
      [&] {
        ::kill(pid, SIGSTOP);
        EXPECT_TRUE(WaitUntil(
            [&] {
              const Job job = cluster_.Status("job");
              if (job.ranks_size() != 4) return false;
              stood_in = job.ranks(1).status().doing();
              return job.ranks(1).status().alive_age_seconds() > 1;  // it stands
            },
            60));
        if (stood_in != "between instructions") return true;
        ::kill(pid, SIGCONT);
        return false;
      },
      60));
  std::string shown;
  EXPECT_TRUE(WaitUntil(
      [&] {
        shown = cluster_.Megascale({"status", "job"}).out;
        return absl::StrContains(shown, "last failure: ");
      },
      60));
  EXPECT_TRUE(absl::StrContains(
      shown, "last failure: rank 1 on n0 hung: its timer thread has not run for "))
      << shown;
  EXPECT_TRUE(absl::StrContains(shown, absl::StrCat(", in ", stood_in, ")"))) << shown;
  EXPECT_TRUE(absl::StrContains(shown, "last instructions completed: ")) << shown;
  ExpectTheSameBits();
  const Job after = cluster_.Status("job");
  EXPECT_EQ(after.attempt(), before_.attempt() + 1);
  EXPECT_EQ(after.culprit().rank(), 1);
  EXPECT_EQ(after.culprit().failure_class(), telemetry::v1::FAILURE_CLASS_HUNG);
}

// A job that encodes two files before it trains; the second one takes seconds on any machine.
class TokenizingTest : public ::testing::Test {
 protected:
  // The token files of a cache, and when they were written.
  using Pieces = std::map<std::string, std::filesystem::file_time_type>;

  TokenizingTest() {
    WriteDocuments(Path("first.jsonl"), 2000);
    EXPECT_TRUE(base::WriteFileDurably(Path("tokenizer.json"), tokenizer::NineLetters()).ok());
    cluster_.StartDriver();
    cluster_.StartAgent(0, 4);
  }
  static void WriteDocuments(const std::string& path, int count) {
    std::string text;
    uint32_t state = 1;
    for (int i = 0; i < count; ++i) {
      absl::StrAppend(&text, R"({"text": ")");
      for (int letter = 0; letter < 12; ++letter) {
        state = state * 1664525u + 1013904223u;
        text += static_cast<char>('a' + (state >> 16) % 9);
      }
      absl::StrAppend(&text, "\"}\n");
    }
    EXPECT_TRUE(base::WriteFileDurably(path, text).ok());
  }
  std::string Path(const std::string& name) const {
    return absl::StrCat(cluster_.directory(), "/", name);
  }
  // Each job has its own cache.
  void Submit(const std::string& job_id) const {
    cluster_.Submit(
        job_id, {absl::StrCat("data.files=[", Path("first.jsonl"), ", ", Path("second.jsonl"), "]"),
                 "model.vocab_size=256", "data.json_field=text",
                 absl::StrCat("data.tokenizer=", Path("tokenizer.json")),
                 absl::StrCat("data.token_cache=", Path(job_id + "-tokens")), "train.steps=10"});
  }
  Pieces PiecesOf(const std::string& job_id) const {
    Pieces pieces;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(Path(job_id + "-tokens"))) {
      if (entry.path().extension() != ".tokens") continue;
      pieces[entry.path()] = entry.last_write_time();
    }
    return pieces;
  }

  // For how long the job's host encoded after the first file.
  double EncodingSeconds(const std::string& job_id) const {
    std::vector<std::filesystem::file_time_type> times;
    for (const auto& [path, time] : PiecesOf(job_id)) times.push_back(time);
    const auto [first, last] = std::minmax_element(times.begin(), times.end());
    return times.empty() ? 0 : std::chrono::duration<double>(*last - *first).count();
  }
  // Writes a second file that takes at least kSecondsMin to encode, because progress is told once a
  // second, and runs a job with it. Returns the job's id.
  std::string SizeSecondFile() const {
    constexpr double kSecondsMin = 3;
    constexpr double kSecondsWanted = 5;
    constexpr double kGrowthMax = 8;
    constexpr double kDocumentsMax = 32'000'000;  // 1 GB
    double num_documents = 2'000'000;
    for (int round = 1;; ++round) {
      WriteDocuments(Path("second.jsonl"), static_cast<int>(num_documents));
      const std::string job_id = absl::StrCat("calm", round);
      Submit(job_id);
      EXPECT_EQ(cluster_.WaitForEnd(job_id), control::v1::JOB_STATE_SUCCEEDED);
      const double seconds = EncodingSeconds(job_id);
      if (seconds >= kSecondsMin || round == 3) return job_id;
      num_documents *= std::min(kGrowthMax, kSecondsWanted / std::max(seconds, 1e-3));
      num_documents = std::min(num_documents, kDocumentsMax);
    }
  }

  Cluster cluster_;
};

TEST_F(TokenizingTest, AHostKilledMeanwhileIsReplacedAndFinishedPiecesStay) {
  const std::string calm_job = SizeSecondFile();
  const Ended calm = EndOf(cluster_, calm_job);
  const size_t num_pieces = PiecesOf(calm_job).size();
  Submit("job");
  Job job;
  const std::string message = absl::StrCat("tokenizing ", Path("second.jsonl"), ": ");
  ASSERT_TRUE(WaitUntil(
      [&] {
        job = cluster_.Status("job");
        return absl::StartsWith(job.message(), message);
      },
      60))
      << job.message();
  EXPECT_TRUE(absl::EndsWith(job.message(), " % on n0")) << job.message();
  const std::vector<pid_t> hosts = DescendantsOf(cluster_.agent_pid(0), "host --link-fd");
  ASSERT_EQ(hosts.size(), 1u);
  ::kill(hosts[0], SIGKILL);
  ASSERT_TRUE(WaitUntil([&] { return !IsAlive(hosts[0]); }, 10));
  const Pieces before = PiecesOf("job");
  ASSERT_LT(before.size(), num_pieces) << "all was encoded before the host could be killed";
  ASSERT_GE(before.size(), 1u) << "the first file comes first";
  const Ended ended = EndOf(cluster_, "job");
  EXPECT_EQ(ended.digest, calm.digest);
  EXPECT_EQ(ended.losses, calm.losses);
  EXPECT_EQ(cluster_.Status("job").attempt(), 1) << "nothing had been trained";
  const Pieces after = PiecesOf("job");
  EXPECT_EQ(after.size(), num_pieces);
  for (const auto& [path, time] : before) {
    EXPECT_EQ(after.at(path), time) << path << " was encoded again";
  }
}

}  // namespace
}  // namespace megascale::e2e
