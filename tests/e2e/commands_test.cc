// A user's commands with real processes: exit codes, idempotency, cancel, logs, resuming, and one
// clear line per mistake.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/data/tokenizer/testing/letters_tokenizer.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;

class CommandsTest : public ::testing::Test {
 protected:
  void Start() {
    cluster_.StartDriver();
    cluster_.StartAgent(0, 4);
  }
  std::string job_file() const { return cluster_.directory() + "/job.yaml"; }
  // Expects that no process of a job is left under the agents, and no file of it in their run
  // directories.
  void ExpectNothingLeft() {
    EXPECT_TRUE(
        WaitUntil([&] { return DescendantsOf(cluster_.agent_pid(0), "--link-fd").empty(); }, 20));
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(cluster_.directory() + "/n0")) {
      EXPECT_FALSE(entry.is_socket()) << entry.path();
    }
    const std::string descriptors = absl::StrCat("/proc/", cluster_.agent_pid(0), "/fd");
    EXPECT_TRUE(WaitUntil([&] { return NumSharedMemories(descriptors) == 0; }, 20));
  }

  static int NumSharedMemories(const std::string& descriptors) {
    int num = 0;
    for (const auto& entry : std::filesystem::directory_iterator(descriptors)) {
      std::error_code ignored;
      const std::string target = std::filesystem::read_symlink(entry, ignored).string();
      num += target.find("memfd:megascale") != std::string::npos ? 1 : 0;
    }
    return num;
  }

  Cluster cluster_;
};

TEST_F(CommandsTest, SubmitIsIdempotentByJobId) {
  Start();
  cluster_.Submit("twice");
  cluster_.Submit("twice");
  const CommandResult other =
      cluster_.Megascale({"submit", job_file(), "--job-id", "twice", "--set", "train.seed=4"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("twice"), std::string::npos) << other.err;
  EXPECT_EQ(cluster_.Megascale({"cancel", "twice"}).exit_code, 0);
  EXPECT_EQ(cluster_.WaitForEnd("twice"), control::v1::JOB_STATE_CANCELLED);
  const CommandResult ended = cluster_.Megascale({"submit", job_file(), "--job-id", "twice"});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_NE(ended.err.find("job twice: exists already, CANCELLED since "), std::string::npos)
      << ended.err;
}

// The driver and the agents are still starting when the job is submitted.
TEST_F(CommandsTest, ReadmesBlockWorksAsAScript) {
  const std::string readme = base::ReadFile(Runfile("README.md"), 1 << 20).value();
  const std::vector<std::string> parts = absl::StrSplit(readme, "./dev install  ");
  ASSERT_EQ(parts.size(), 2u);
  // From the line after it to the end of the block.
  const std::string block = parts[1].substr(parts[1].find('\n') + 1);
  const std::string script = block.substr(0, block.find("```"));
  ASSERT_NE(script.find("megascale driver &\n"), std::string::npos) << script;
  const std::string file = cluster_.directory() + "/by-hand.sh";
  ASSERT_TRUE(base::WriteFileDurably(file, script).ok());
  const std::string sockets = cluster_.directory() + "/run";
  ASSERT_EQ(::mkdir(sockets.c_str(), 0700), 0);
  const std::string search = std::filesystem::path(Program()).parent_path().string();
  // What the script leaves running becomes a child of this process.
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const CommandResult result =
      e2e::Run({"/bin/bash", "-e", file}, {{"PATH", absl::StrCat(search, ":", ::getenv("PATH"))},
                                           {"HOME", cluster_.directory()},
                                           {"XDG_RUNTIME_DIR", sockets},
                                           {"XDG_STATE_HOME", cluster_.directory()},
                                           {"NO_COLOR", "1"}});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_NE(result.out.find("demo  SUCCEEDED"), std::string::npos) << result.out << result.err;
  const std::vector<pid_t> left = DescendantsOf(::getpid(), "megascale ");
  EXPECT_GE(left.size(), 3u) << "the driver and two agents";
  for (const pid_t pid : left) KillAndReap(pid);
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

// As in a script that starts everything at once.
TEST_F(CommandsTest, SubmitWaitsForADriverThatStartsAfterIt) {
  const std::string log = cluster_.directory() + "/submit.log";
  const pid_t pid = Spawn({Program(), "submit", job_file(), "--job-id", "early", "--retry-for",
                           "60s", "--address", cluster_.address()},
                          log);
  const auto says = [&](const char* what) {
    return base::ReadFile(log, 1 << 20).value_or("").find(what) != std::string::npos;
  };
  ASSERT_TRUE(WaitUntil([&] { return says("no driver answers at "); }, 60));
  cluster_.StartDriver();
  EXPECT_EQ(WaitForExit(pid, 60), 0);
  EXPECT_TRUE(says("early\n"));
}

TEST_F(CommandsTest, CancelLeavesNothingAndSucceedsTwice) {
  Start();
  cluster_.Submit("job", {"train.steps=100000"});
  ASSERT_TRUE(cluster_.WaitForStep("job", 3));
  EXPECT_EQ(cluster_.Megascale({"cancel", "job"}).exit_code, 0);
  EXPECT_EQ(cluster_.Megascale({"cancel", "job"}).exit_code, 0);
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(cluster_.Megascale({"cancel", "job"}).exit_code, 0);
  EXPECT_EQ(cluster_.Megascale({"wait", "job"}).exit_code, 1);
  ExpectNothingLeft();
}

TEST_F(CommandsTest, CancelWhileStartingLeavesNothing) {
  Start();
  cluster_.Submit("job", {"train.steps=100000"});
  EXPECT_EQ(cluster_.Megascale({"cancel", "job", "--grace", "1s"}).exit_code, 0);
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_CANCELLED);
  ExpectNothingLeft();
}

TEST_F(CommandsTest, CancelWithCheckpointKeepsTheLastStepAndAnotherJobGoesOnFromIt) {
  Start();
  cluster_.Submit("whole");
  ASSERT_EQ(cluster_.WaitForEnd("whole"), control::v1::JOB_STATE_SUCCEEDED);

  cluster_.Submit("part");
  ASSERT_TRUE(cluster_.WaitForStep("part", 30));
  EXPECT_EQ(cluster_.Megascale({"cancel", "part", "--checkpoint"}).exit_code, 0);
  ASSERT_EQ(cluster_.WaitForEnd("part"), control::v1::JOB_STATE_CANCELLED);
  const Job part = cluster_.Status("part");
  EXPECT_EQ(part.last_checkpoint().step(), part.last_step());

  const CommandResult rest = cluster_.Megascale(
      {"submit", job_file(), "--job-id", "rest", "--from", part.last_checkpoint().directory()});
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  // Whose checkpoint it is stands in one line before the others.
  EXPECT_EQ(rest.err.substr(0, rest.err.find('\n')),
            absl::StrCat("--from: begins with step ", part.last_step(), " of job part, ",
                         part.last_checkpoint().directory()));
  ASSERT_EQ(cluster_.WaitForEnd("rest"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster_.Digest("rest"), cluster_.Digest("whole"));
}

// A job ends soon after its last checkpoint's commit; the deletion of older ones must not get lost.
TEST_F(CommandsTest, AnEndedJobLeavesAsManyCheckpointsAsItWasToKeep) {
  Start();
  const auto num_checkpoints = [&](const std::string& job_id) {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(cluster_.checkpoints(job_id))) {
      if (entry.path().filename() == ".owner.json") continue;
      EXPECT_EQ(entry.path().filename().string().rfind("step-", 0), 0u) << entry.path();
      ++count;
    }
    return count;
  };
  cluster_.Submit("ended", {"checkpoint.keep=2", "checkpoint.interval=20", "train.steps=100"});
  ASSERT_EQ(cluster_.WaitForEnd("ended"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(num_checkpoints("ended"), 2);

  cluster_.Submit("stopped", {"checkpoint.keep=2", "checkpoint.interval=20"});
  ASSERT_TRUE(cluster_.WaitForStep("stopped", 50));
  EXPECT_EQ(cluster_.Megascale({"cancel", "stopped", "--checkpoint"}).exit_code, 0);
  ASSERT_EQ(cluster_.WaitForEnd("stopped"), control::v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(num_checkpoints("stopped"), 2);
}

TEST_F(CommandsTest, ResumingOnChangedDataOrNumericsIsRefusedUnlessAllowed) {
  Start();
  cluster_.Submit("first", {"train.steps=5"});
  ASSERT_EQ(cluster_.WaitForEnd("first"), control::v1::JOB_STATE_SUCCEEDED);
  const std::string checkpoint = cluster_.Status("first").last_checkpoint().directory();
  std::vector<std::string> resume = {"submit",   job_file(), "--from",
                                     checkpoint, "--set",    "train.steps=8"};

  std::vector<std::string> longer = resume;
  longer.insert(longer.end(), {"--job-id", "longer", "--follow"});
  EXPECT_EQ(cluster_.Megascale(longer).exit_code, 1);
  EXPECT_TRUE(absl::StrContains(
      cluster_.Status("longer").message(),
      "the checkpoint was made under other conditions: the learning rate of step 6 was 0.0003, is "
      "0.00165 (train.steps was 5, is 8); restore them, or go on with other bits by "
      "--allow-changed optimizer"))
      << cluster_.Status("longer").message();
  resume.insert(resume.end(), {"--allow-changed", "optimizer"});

  std::vector<std::string> numerics = resume;
  numerics.insert(numerics.end(), {"--job-id", "numerics", "--set", "train.seed=4", "--follow"});
  const CommandResult refused = cluster_.Megascale(numerics);
  EXPECT_EQ(refused.exit_code, 1) << refused.out << refused.err;
  const Job job = cluster_.Status("numerics");
  EXPECT_EQ(job.state(), control::v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.culprit().failure_class(), telemetry::v1::FAILURE_CLASS_REFUSED);
  EXPECT_NE(job.message().find("seed"), std::string::npos) << job.message();

  ASSERT_TRUE(base::WriteFileDurably(cluster_.directory() + "/text", std::string(50000, 'x')).ok());
  std::vector<std::string> data = resume;
  data.insert(data.end(), {"--job-id", "data", "--follow"});
  EXPECT_EQ(cluster_.Megascale(data).exit_code, 1);
  EXPECT_NE(cluster_.Status("data").message().find("data"), std::string::npos)
      << cluster_.Status("data").message();
  data = resume;
  data.insert(data.end(), {"--job-id", "allowed", "--follow", "--allow-changed", "data"});
  const CommandResult allowed = cluster_.Megascale(data);
  EXPECT_EQ(allowed.exit_code, 0) << allowed.out << allowed.err;
}

// With a learning rate that leaves the weights alone, a loss tells which samples a step had.
TEST_F(CommandsTest, OtherBatchesGoOnAtTheNextSampleAlsoAfterARestartAndAgain) {
  Start();
  const std::vector<std::string> still = {"optimizer.lr=1e-12",
                                          "optimizer.warmup_steps=0",
                                          "parallel.data_parallel_size=1",
                                          "train.steps=12",
                                          "train.micro_batch_size=1",
                                          "checkpoint.interval=2",
                                          "checkpoint.keep=9",
                                          "parallel.pipeline_model_parallel_size=1"};
  const auto fields = [&](int batch) {
    std::vector<std::string> all = still;
    all.push_back(absl::StrCat("train.global_batch_size=", batch));
    return all;
  };
  const auto losses = [&](const std::string& job) {
    std::map<int64_t, double> by_step;
    for (const std::string& line : cluster_.LossLog(job)) {
      long long step = 0;  // what %lld reads
      double loss = NAN;
      EXPECT_EQ(std::sscanf(line.c_str(), "%lld %la", &step, &loss), 2) << line;
      by_step[step] = loss;
    }
    return by_step;
  };
  const auto go_on = [&](const std::string& job, const std::string& from, int batch,
                         const std::vector<std::string>& allowed) {
    std::vector<std::string> command = {"submit", job_file(), "--job-id", job,
                                        "--from", from,       "--follow"};
    command.insert(command.end(), allowed.begin(), allowed.end());
    for (const std::string& field : fields(batch)) command.insert(command.end(), {"--set", field});
    const CommandResult run = cluster_.Megascale(command);
    EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  };
  const auto checkpoint_of = [&](const std::string& job, int64_t step) {
    return absl::StrCat(cluster_.checkpoints(job), "/", checkpoint::StepDirectoryName(step, 1));
  };
  for (const int batch : {2, 4}) {
    const std::string job = absl::StrCat("whole-", batch);
    cluster_.Submit(job, fields(batch));
    ASSERT_EQ(cluster_.WaitForEnd(job), control::v1::JOB_STATE_SUCCEEDED);
  }
  const auto fours = losses("whole-4");

  // 4 steps of 2 samples, then 4: sample 8 is the first of step 3 of batches of 4.
  const std::vector<std::string> allow = {"--allow-changed", "batch"};
  go_on("larger", checkpoint_of("whole-2", 4), 4, allow);
  const auto larger = losses("larger");
  ASSERT_EQ(larger.size(), 8u);
  for (int64_t step = 5; step <= 12; ++step) {
    EXPECT_NEAR(larger.at(step), fours.at(step - 2), 1e-6) << step;
    EXPECT_GT(std::abs(larger.at(step) - fours.at(step)), 1e-5) << step;
  }
  // It has 24 samples after step 8: two steps of 2 samples are one of 4, from step 7 on.
  go_on("smaller", checkpoint_of("larger", 8), 2, allow);
  const auto smaller = losses("smaller");
  ASSERT_EQ(smaller.size(), 4u);
  EXPECT_NEAR((smaller.at(9) + smaller.at(10)) / 2, fours.at(7), 1e-6);
  EXPECT_NEAR((smaller.at(11) + smaller.at(12)) / 2, fours.at(8), 1e-6);
  go_on("again", checkpoint_of("smaller", 10), 2, {});
  const auto again = losses("again");
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again.at(11), smaller.at(11));
  EXPECT_EQ(again.at(12), smaller.at(12));
}

// A driver on a Unix socket tests machines quickly if nobody says otherwise.
TEST_F(CommandsTest, AMachineIsTestedBeforeItsFirstRankAndAnEndedJobKeepsThatAsEvidence) {
  cluster_.SetDriverFlags({"--machine-tests", ""});
  Start();
  cluster_.Submit("tested", {"train.steps=8"});
  EXPECT_EQ(cluster_.WaitForEnd("tested"), control::v1::JOB_STATE_SUCCEEDED);
  const CommandResult nodes = cluster_.Megascale({"nodes", "-o", "json"});
  for (const char* part : {"STATE_PASSED", "TEST_KIND_QUICK", "memory", "arithmetic", "training",
                           "loopback", "disk", "its agent started"}) {
    EXPECT_TRUE(absl::StrContains(nodes.out, part)) << part << "\n" << nodes.out;
  }
  EXPECT_TRUE(absl::StrContains(cluster_.Megascale({"nodes"}).out, "passed (quick)"));
  const Job job = cluster_.Status("tested");
  ASSERT_EQ(job.evidence().nodes_size(), 1);
  EXPECT_EQ(job.evidence().nodes(0).machine_test().state(), agent::v1::MachineTest::STATE_PASSED);
  EXPECT_EQ(job.evidence().last_step(), 8);
}

TEST_F(CommandsTest, SparesAreListedAddedAndRemoved) {
  cluster_.StartDriver();
  cluster_.StartAgent(0, 2);
  cluster_.StartAgent(1, 2);
  ASSERT_TRUE(cluster_.WaitForAgents(2));
  const CommandResult added = cluster_.Megascale({"spares", "--add", "n1"});
  EXPECT_EQ(added.exit_code, 0) << added.err;
  const std::string spares = cluster_.Megascale({"spares"}).out;
  EXPECT_TRUE(absl::StrContains(spares, "n1")) << spares;
  EXPECT_FALSE(absl::StrContains(spares, "n0")) << spares;
  cluster_.Submit("job", {"train.steps=5"});
  const auto waits = [&] {
    return absl::StrContains(cluster_.Status("job").message(), "n1 is a spare");
  };
  EXPECT_TRUE(WaitUntil(waits, 30)) << cluster_.Status("job").message();
  const CommandResult removed = cluster_.Megascale({"spares", "--remove", "n1"});
  EXPECT_EQ(removed.exit_code, 0) << removed.err;
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  const CommandResult unknown = cluster_.Megascale({"spares", "--add", "n11"});
  EXPECT_EQ(unknown.exit_code, 4);
  EXPECT_EQ(unknown.err, "megascale: node n11: there is no such node; did you mean n1?\n");
}

TEST_F(CommandsTest, AJobGoesOnAfterTheDriversLogWasRestoredFromABackup) {
  cluster_.PaceJobs();
  Start();
  cluster_.Submit("job", {"train.steps=120", "checkpoint.interval=10", "checkpoint.keep=20"});
  ASSERT_TRUE(cluster_.WaitForStep("job", 25));
  const std::string copy = cluster_.directory() + "/copy";
  const CommandResult backup =
      e2e::Run({Program(), "driver", "backup", copy, "--state-dir", cluster_.state_directory()});
  EXPECT_EQ(backup.exit_code, 0) << backup.err;
  EXPECT_TRUE(absl::StrContains(backup.out, "copied the log of 1 job to ")) << backup.out;
  cluster_.Submit("late");
  ASSERT_TRUE(cluster_.WaitForStep("job", 45));
  cluster_.KillDriver();
  std::filesystem::remove_all(cluster_.state_directory() + "/log");
  const CommandResult restored =
      e2e::Run({Program(), "driver", "restore", copy, "--state-dir", cluster_.state_directory()});
  ASSERT_EQ(restored.exit_code, 0) << restored.err;
  cluster_.StartDriver();
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  const Job job = cluster_.Status("job");
  EXPECT_EQ(job.attempt_reason(), "DriverRestored");
  EXPECT_GT(job.attempt(), 1'000'000);
  EXPECT_EQ(cluster_.LossLog("job").size(), 120u);
  EXPECT_EQ(cluster_.Megascale({"status", "late"}).exit_code, 4) << "the copy does not know it";
  EXPECT_TRUE(std::filesystem::exists(cluster_.state_directory() + "/jobs.before-restore"));
  ExpectNothingLeft();
}

// An agent meets both, as when an address moves from one machine to another. Sockets are swapped
// for that.
TEST_F(CommandsTest, OfTwoDriversOnCopiesTheOneWithTheOlderEpochStopsAndTheJobGoesOn) {
  cluster_.PaceJobs();
  Start();
  cluster_.Submit("job", {"train.steps=100", "checkpoint.interval=10", "checkpoint.keep=20"});
  ASSERT_TRUE(cluster_.WaitForStep("job", 15));
  const std::string copy = cluster_.directory() + "/copy";
  const std::string other_state = cluster_.directory() + "/other";
  for (const auto& [command, state] :
       {std::pair("backup", cluster_.state_directory()), std::pair("restore", other_state)}) {
    const CommandResult result =
        e2e::Run({Program(), "driver", command, copy, "--state-dir", state});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  const std::string socket = cluster_.directory() + "/driver.sock";
  const std::string other_socket = cluster_.directory() + "/other.sock";
  const std::string other_log = cluster_.directory() + "/other.log";
  const auto read = [](const std::string& log) {
    return base::ReadFile(log, 1 << 20).value_or("");
  };
  const auto start_other = [&] {
    const pid_t pid = Spawn({Program(), "driver", "--listen", "unix:" + other_socket, "--state-dir",
                             other_state, "--machine-tests", "off"},
                            other_log);
    EXPECT_TRUE(WaitUntil([&] { return std::filesystem::exists(other_socket); }, 30));
    return pid;
  };
  pid_t other = start_other();
  std::filesystem::rename(socket, socket + ".old");
  std::filesystem::rename(other_socket, socket);
  cluster_.KillAgent(0);
  cluster_.StartAgent(0, 4);
  const auto is_fenced = [&] {
    return absl::StrContains(read(other_log), "epoch_fenced { node_id: \"n0\"");
  };
  ASSERT_TRUE(WaitUntil(is_fenced, 60)) << read(other_log);
  std::filesystem::rename(socket + ".old", socket);
  KillAndReap(other);  // so that its agent looks for a driver, and finds the first one
  const int status = cluster_.AwaitDriverExit();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  EXPECT_TRUE(absl::StrContains(read(cluster_.directory() + "/driver.log"),
                                "another driver runs on a copy of it"));
  other = start_other();
  std::filesystem::rename(other_socket, socket);
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_GT(cluster_.Status("job").attempt(), 1'000'000);
  EXPECT_EQ(cluster_.LossLog("job").size(), 100u);
  KillAndReap(other);
}

TEST_F(CommandsTest, LogsListWaitAndVersionShowWhatIs) {
  Start();
  cluster_.Submit("job", {"train.steps=5"});
  EXPECT_EQ(cluster_.Megascale({"wait", "job"}).exit_code, 0);
  const CommandResult logs = cluster_.Megascale({"logs", "job", "--rank", "1"});
  EXPECT_EQ(logs.exit_code, 0) << logs.err;
  EXPECT_NE(logs.out.find("worker 1"), std::string::npos) << logs.out;
  EXPECT_NE(cluster_.Megascale({"list"}).out.find("job"), std::string::npos);
  EXPECT_EQ(cluster_.Megascale({"version"}).exit_code, 0);
  EXPECT_EQ(cluster_.LossLog("job").size(), 5u);
}

TEST_F(CommandsTest, CtrlCInWatchAndFollowDetachesAndSaysHowToCancel) {
  Start();
  const std::vector<std::vector<std::string>> commands = {
      {"submit", job_file(), "--job-id", "job", "--set", "train.steps=100000", "--follow"},
      {"watch", "job"},
  };
  for (const std::vector<std::string>& words : commands) {
    std::vector<std::string> command = {Program()};
    command.insert(command.end(), words.begin(), words.end());
    command.insert(command.end(), {"--address", cluster_.address()});
    const std::string log = absl::StrCat(cluster_.directory(), "/", words[0], ".log");
    const pid_t pid = Spawn(command, log);
    ASSERT_TRUE(WaitUntil(
        [&] {
          return base::ReadFile(log, 1 << 20).value_or("").find("step ") != std::string::npos;
        },
        60));
    ::kill(pid, SIGINT);
    const int status = WaitForExit(pid, 30);
    ASSERT_NE(status, -1);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_NE(base::ReadFile(log, 1 << 20).value_or("").find("megascale cancel job"),
              std::string::npos)
        << base::ReadFile(log, 1 << 20).value_or("");
    EXPECT_EQ(cluster_.Status("job").state(), control::v1::JOB_STATE_RUNNING);
  }
  EXPECT_EQ(cluster_.Megascale({"cancel", "job"}).exit_code, 0);
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_CANCELLED);
}

TEST_F(CommandsTest, LogsShowEachAttemptAndFollowToTheEnd) {
  cluster_.PaceJobs();
  Start();
  // Steps enough for a driver that is slow to start again.
  cluster_.Submit("job", {"train.steps=150", "train.micro_batch_size=4"});
  ASSERT_TRUE(cluster_.WaitForStep("job", 25));
  const std::string log = cluster_.directory() + "/follow.log";
  const pid_t pid =
      Spawn({Program(), "logs", "job", "-f", "--rank", "1", "--address", cluster_.address()}, log);
  const auto followed = [&] { return base::ReadFile(log, 1 << 20).value_or(""); };
  ASSERT_TRUE(WaitUntil([&] { return absl::StrContains(followed(), "attempt 1 from step"); }, 60));
  cluster_.StopDriver();
  ASSERT_TRUE(WaitUntil([&] { return absl::StrContains(followed(), "cannot be reached"); }, 60));
  cluster_.StartDriver();
  pid_t worker = 0;
  ASSERT_TRUE(WaitUntil(
      [&] {
        const Job job = cluster_.Status("job");
        worker = job.ranks_size() == 0 ? 0 : job.ranks(0).status().pid();
        return worker > 0;
      },
      60));
  ::kill(worker, SIGKILL);
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(WaitForExit(pid, 60), 0) << followed();
  std::string logs;
  for (const char* attempt : {"1", "2"}) {
    const CommandResult shown =
        cluster_.Megascale({"logs", "job", "--rank", "1", "--attempt", attempt});
    EXPECT_NE(shown.out.find(absl::StrCat("attempt ", attempt, " from step")), std::string::npos)
        << shown.out;
    logs += shown.out;
  }
  // Each line appears once, across the restarts of the driver and of the job.
  EXPECT_EQ(
      absl::StrReplaceAll(
          followed(), {{"the driver cannot be reached; trying again, from this line on\n", ""}}),
      logs);
}

TEST_F(CommandsTest, GenerateIsDeterministicForASeed) {
  Start();
  cluster_.Submit("job", {"train.steps=20"});
  ASSERT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  const std::vector<std::string> generate = {
      "generate", "--checkpoint", cluster_.Status("job").last_checkpoint().directory(),
      "--prompt", "the",          "--seed",
      "5",        "--tokens",     "40"};
  const CommandResult first = cluster_.Megascale(generate);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.out.substr(0, 3), "the");
  EXPECT_GT(first.out.size(), 30u);
  EXPECT_EQ(first.out, cluster_.Megascale(generate).out);
  std::vector<std::string> mistaken = generate;
  mistaken.back() = "-1";
  const CommandResult refused = cluster_.Megascale(mistaken);
  EXPECT_EQ(refused.exit_code, 2) << refused.err;
  EXPECT_EQ(refused.out, "") << "the prompt was printed before the check";
}

TEST_F(CommandsTest, TheDriverRemembersEndedJobsOverACleanRestart) {
  Start();
  cluster_.Submit("job", {"train.steps=5"});
  ASSERT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  const std::string digest = cluster_.Digest("job");
  cluster_.StopDriver();
  cluster_.StartDriver();
  EXPECT_EQ(cluster_.Status("job").state(), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster_.Digest("job"), digest);
}

TEST_F(CommandsTest, AJobThatDoesNotFitWaitsAndSaysWhy) {
  Start();
  cluster_.Submit("large", {"parallel.data_parallel_size=4"});
  EXPECT_TRUE(WaitUntil([&] { return cluster_.Status("large").state() != 0; }, 10));
  const Job job = cluster_.Status("large");
  EXPECT_EQ(job.state(), control::v1::JOB_STATE_PENDING);
  EXPECT_NE(job.message().find("8 slots"), std::string::npos) << job.message();
  EXPECT_EQ(cluster_.Megascale({"cancel", "large"}).exit_code, 0);
  EXPECT_EQ(cluster_.WaitForEnd("large"), control::v1::JOB_STATE_CANCELLED);
}

struct Mistake {
  std::vector<std::string> arguments;  // "JOB" stands for the job file
  int exit_code;
  std::string says;
};

TEST_F(CommandsTest, MistakesGetOneClearLineAndTheRightExitCode) {
  Start();
  const std::string tokenizer = cluster_.directory() + "/tokenizer.json";
  ASSERT_TRUE(base::WriteFileDurably(tokenizer, tokenizer::NineLetters()).ok());
  const std::vector<Mistake> mistakes = {
      {{"submit", "JOB", "--set", "model.hiden_size=64"}, 2, "hidden_size"},
      {{"submit", "JOB", "--set", "model.hidden_size=wide"}, 2, "hidden_size"},
      {{"submit", "JOB", "--set", "model.num_attention_heads=5"}, 2, "num_attention_heads"},
      {{"submit", "JOB", "--set", "train.global_batch_size=18"}, 2, "global_batch_size"},
      {{"submit", "none.yaml"}, 2, "none.yaml"},
      {{"submit", "JOB", "--job-id", "../up"}, 2, "../up"},
      {{"submit", "JOB", "--job-id", "two words"}, 2, "two words"},
      {{"status", "nobody"}, 4, "nobody"},
      {{"cancel", "nobody"}, 4, "nobody"},
      {{"logs", "nobody"}, 4, "nobody"},
      {{"wait", "nobody"}, 4, "nobody"},
      {{"statsu"}, 2, "status"},
      {{"status", "x", "--adress", "unix:/tmp/x"}, 2, "--address"},
      {{"status", "x", "--retry-for", "0s", "--address", "unix:/tmp/ms-nobody/d.sock"},
       3,
       "unix:/tmp/ms-nobody/d.sock"},
      {{"checkpoint", "digest", "/nowhere"}, 4, "/nowhere"},
      {{"minder", "check"}, 2, "--series FILE"},
      {{"minder", "check", "nobody"}, 4, "nobody"},
      {{"minder", "watch", "nobody", "--method", "magic"}, 2, "magic"},
      {{"minder", "watch", "nobody", "--continuity", "20m"}, 2, "20m"},
      {{"minder", "train", "/nowhere.csv", "--out", "/tmp/none.json"}, 4, "/nowhere.csv"},
      {{"minder", "train", "JOB", "--out", "/tmp/none.json"}, 2, "is no header"},
      {{"submit", "JOB", "--tokenizer", tokenizer, "--set", "model.vocab_size=9"},
       2,
       "model.vocab_size: is 9, but the tokenizer " + tokenizer + " has 10 tokens"},
      {{"local", "JOB", "--agents", "1", "--slots", "2"}, 2, "4 slots"},
      {{"local", "JOB", "--agents", "2", "--slots", "2", "--data", "/nowhere"}, 2, "/nowhere"},
  };
  for (Mistake mistake : mistakes) {
    for (std::string& word : mistake.arguments) {
      if (word == "JOB") word = job_file();
    }
    const CommandResult result = cluster_.Megascale(mistake.arguments);
    const std::string command = absl::StrCat(mistake.arguments[0], " … ", mistake.says);
    EXPECT_EQ(result.exit_code, mistake.exit_code) << command << "\n" << result.err;
    EXPECT_NE(result.err.find(mistake.says), std::string::npos) << command << "\n" << result.err;
    const std::vector<std::string> lines = absl::StrSplit(result.err, '\n', absl::SkipEmpty());
    EXPECT_LE(lines.size(), 2u) << command << "\n" << result.err;
  }
  EXPECT_EQ(cluster_.Megascale({"list", "-o", "json"}).out.find("toy"), std::string::npos)
      << "a refused job was taken";
}

struct BadData {
  std::string path;
  std::string says;
  std::vector<std::string> sets = {};  // beside data.files
};

// A folder with half of its weights: the index names a file that is missing.
std::string WriteFolderWithoutAShard(const std::string& folder) {
  const auto write = [&](const std::string& name, const std::string& text) {
    EXPECT_TRUE(base::WriteFileDurably(absl::StrCat(folder, "/", name), text).ok());
  };
  std::filesystem::create_directory(folder);
  write("config.json", R"({"architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_embd": 64,
                           "n_layer": 4, "n_head": 4, "n_positions": 32})");
  write("model.safetensors.index.json",
        R"({"weight_map": {"wte.weight": "model-00001-of-00002.safetensors"}})");
  return folder;
}

TEST_F(CommandsTest, DataThatTheAgentCannotReadIsRefusedBeforeAnyWorkerStarts) {
  if (::geteuid() == 0) {  // root reads every file, unless it gives that up
    constexpr char kWithout[] = "-dac_override,-dac_read_search";
    cluster_.RunAgentsUnder({"/usr/bin/setpriv", absl::StrCat("--inh-caps=", kWithout),
                             absl::StrCat("--bounding-set=", kWithout)});
  }
  Start();
  const std::string folder = cluster_.directory() + "/";
  ASSERT_TRUE(base::WriteFileDurably(folder + "empty", "").ok());
  ASSERT_TRUE(base::WriteFileDurably(folder + "short", "to be").ok());
  ASSERT_TRUE(base::WriteFileDurably(folder + "secret", "to be or not to be").ok());
  ASSERT_TRUE(
      base::WriteFileDurably(folder + "bad.jsonl", "{\"text\": \"to be\"}\n{\"body\": 1}\n").ok());
  ASSERT_EQ(::chmod((folder + "secret").c_str(), 0), 0);
  ASSERT_EQ(::mkfifo((folder + "fifo").c_str(), 0600), 0);
  const std::string half = WriteFolderWithoutAShard(folder + "half");
  const std::vector<BadData> mistakes = {
      {"/nowhere/text", "No such file or directory; expected a file that user "},
      {folder + "empty", ": is empty; expected a file with text in it"},
      {folder + "short",
       " has 5 bytes for training (of 5), expected at least train.seq_length + 1"},
      {folder + "fifo", ": is a FIFO; expected a regular file"},
      {folder + "secret", "Permission denied; expected a file that user "},
      {folder + "bad.jsonl",
       "bad.jsonl:2: has no field 'text'; expected one with the text",
       {"data.json_field=text", "data.tokenizer_vocab_size=300",
        absl::StrCat("data.token_cache=", folder, "tokens")}},
      {folder + "text",
       "model-00001-of-00002.safetensors: is missing",
       {absl::StrCat("model.from=", half)}},
  };
  for (size_t i = 0; i < mistakes.size(); ++i) {
    const std::string id = absl::StrCat("data-", i);
    std::vector<std::string> sets = mistakes[i].sets;
    sets.push_back(absl::StrCat("data.files=[", mistakes[i].path, "]"));
    cluster_.Submit(id, sets);
    const CommandResult wait = cluster_.Megascale({"wait", id});
    EXPECT_EQ(wait.exit_code, 1);
    const Job job = cluster_.Status(id);
    EXPECT_EQ(job.state(), control::v1::JOB_STATE_FAILED);
    const std::string named = mistakes[i].path == folder + "text" ? half : mistakes[i].path;
    for (const std::string& part : {named, mistakes[i].says}) {
      EXPECT_NE(job.message().find(part), std::string::npos) << part << ": " << job.message();
    }
    EXPECT_EQ(job.message().find('\n'), std::string::npos) << job.message();
    EXPECT_EQ(job.culprit().failure_class(), telemetry::v1::FAILURE_CLASS_REFUSED);
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(absl::StrCat(folder, "n0/logs/", id))) {
      EXPECT_EQ(entry.path().filename().string().rfind("rank-", 0), std::string::npos)
          << "a worker was started: " << entry.path();
    }
    const std::string shown = cluster_.Megascale({"status", id}).out;
    EXPECT_NE(shown.find(job.message()), std::string::npos) << shown;
  }
}

// The program as it is shipped chooses the device by itself.
TEST_F(CommandsTest, AJobForGpusIsRefusedInOneLineWhereThereIsNone) {
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "this machine has a GPU";
  Start();
  cluster_.Submit("gpus", {"device=cuda"});
  EXPECT_EQ(cluster_.Megascale({"wait", "gpus"}).exit_code, 1);
  const Job job = cluster_.Status("gpus");
  EXPECT_EQ(job.state(), control::v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.culprit().failure_class(), telemetry::v1::FAILURE_CLASS_REFUSED);
  EXPECT_TRUE(absl::StrContains(job.message(), "device: cuda")) << job.message();
  EXPECT_EQ(job.message().find('\n'), std::string::npos) << job.message();
  const std::string shown = cluster_.Megascale({"status", "gpus"}).out;
  EXPECT_TRUE(absl::StrContains(shown, job.message())) << shown;
}

TEST_F(CommandsTest, APathOfDataMayHaveSpacesAndUnicode) {
  Start();
  const std::string folder = cluster_.directory() + "/größe 4, 文 \"x\"";
  std::filesystem::create_directory(folder);
  std::filesystem::rename(cluster_.directory() + "/text", folder + "/the text");
  cluster_.Submit("job", {absl::StrCat("data.files=['", folder, "/the text']"), "train.steps=5"});
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster_.LossLog("job").size(), 5u);
}

}  // namespace
}  // namespace megascale::e2e
