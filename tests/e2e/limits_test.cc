// Control groups that limit an agent's cores and memory: `status` shows the limits, and the
// preflight warns of them or refuses the job before a worker starts. So it does where the program
// was built without CUDA.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/process/resource_limit.h"
#include "tests/e2e/cluster.h"
#include "tests/soak.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;

// Groups below this test's own, of real controllers; removed with the object.
class LimitedGroups {
 public:
  ~LimitedGroups() {
    for (const std::string& directory : directories_) {
      EXPECT_TRUE(WaitUntil([&] { return ::rmdir(directory.c_str()) == 0; }, 20)) << directory;
    }
  }
  bool LimitCores(int percent = 150) {
    const std::string quota = absl::StrCat(percent * 1000);
    return Make("cpu", {{"cpu.cfs_period_us", "100000"}, {"cpu.cfs_quota_us", quota}},
                {{"cpu.max", absl::StrCat(quota, " 100000")}});
  }
  bool LimitMemory(int64_t bytes) {
    return Make("memory", {{"memory.limit_in_bytes", absl::StrCat(bytes)}},
                {{"memory.max", absl::StrCat(bytes)}});
  }
  const std::vector<std::string>& directories() const { return directories_; }
  // Returns the command that starts an agent within them.
  std::vector<std::string> Prefix() const {
    std::string enter;
    for (const std::string& directory : directories_) {
      absl::StrAppend(&enter, "echo $$ > ", directory, "/cgroup.procs && ");
    }
    return {"/bin/sh", "-c", enter + "exec \"$@\"", "sh"};
  }

 private:
  using Files = std::vector<std::pair<std::string, std::string>>;

  bool Make(const std::string& controller, const Files& version1, const Files& version2) {
    for (const base::ControlGroup& own : base::ControlGroupsOf(controller)) {
      const std::string directory = absl::StrCat(own.directory, "/megascale-limits-", ::getpid());
      if (::mkdir(directory.c_str(), 0755) != 0) continue;
      bool written = true;
      for (const auto& [name, text] : own.version == 1 ? version1 : version2) {
        std::ofstream file(absl::StrCat(directory, "/", name));
        file << text << std::flush;
        written = written && file.good();
      }
      if (written) {
        directories_.push_back(directory);
        return true;
      }
      ::rmdir(directory.c_str());
    }
    return false;
  }

  std::vector<std::string> directories_;
};

// Holds a process in a frozen group of version 1: it dies of no signal before it is thawed, as a
// process that reads from a dead file server does.
class Freezer {
 public:
  Freezer() {
    for (const base::ControlGroup& own : base::ControlGroupsOf("freezer")) {
      if (own.version != 1) continue;
      directory_ = absl::StrCat(own.directory, "/megascale-", ::getpid());
      ::mkdir(directory_.c_str(), 0755);
      return;
    }
  }
  ~Freezer() {
    Write("freezer.state", "THAWED");
    EXPECT_TRUE(WaitUntil([&] { return !works() || ::rmdir(directory_.c_str()) == 0; }, 30));
  }
  bool works() const { return ::access((directory_ + "/freezer.state").c_str(), W_OK) == 0; }
  void Freeze(pid_t pid) const {
    Write("cgroup.procs", absl::StrCat(pid));
    Write("freezer.state", "FROZEN");
  }

 private:
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(absl::StrCat(directory_, "/", name)) << text << std::flush;
  }

  std::string directory_;
};

// The driver waits for five minutes, so only `./dev soak` runs it.
TEST(LimitsTest, AProcessThatCannotBeEndedQuarantinesItsMachineAndTheJobGoesOnElsewhere) {
  if (!IsSoak()) return;
  Cluster cluster;
  cluster.StartDriver();
  for (const int agent : {0, 1, 2}) cluster.StartAgent(agent, 2);
  ASSERT_TRUE(cluster.WaitForAgents(3));
  const Freezer freezer;  // it thaws before the cluster waits for its processes
  if (!freezer.works()) GTEST_SKIP() << "no freezer group of version 1 can be made here";
  cluster.Submit("job", {"train.steps=2000"});
  ASSERT_TRUE(cluster.WaitForStep("job", 30));
  const Job before = cluster.Status("job");
  ASSERT_EQ(before.ranks_size(), 4);
  const std::string stuck = before.ranks(2).node_id();
  freezer.Freeze(before.ranks(2).status().pid());
  ::kill(before.ranks(0).status().pid(), SIGKILL);
  const auto goes_on = [&] {
    const Job job = cluster.Status("job");
    return job.attempt() > before.attempt() && job.last_record().attempt() == job.attempt();
  };
  ASSERT_TRUE(WaitUntil(goes_on, 420)) << cluster.Status("job").message();
  const Job after = cluster.Status("job");
  for (const auto& rank : after.ranks()) EXPECT_NE(rank.node_id(), stuck);
  const std::string nodes = cluster.Megascale({"nodes"}).out;
  EXPECT_TRUE(absl::StrContains(nodes, "could not end the processes")) << nodes;
  const CommandResult cancelled = cluster.Megascale({"cancel", "job"});
  EXPECT_EQ(cancelled.exit_code, 0) << cancelled.err;
}

// One message of the kernel has at most 253 descriptors, and ours had 64. Needs 10 GiB, so only
// `./dev soak` runs it.
TEST(LimitsTest, AMachineServesMoreRanksThanOneMessageHadDescriptors) {
  if (!IsSoak()) return;
  Cluster cluster;
  cluster.StartDriver();
  cluster.StartAgent(0, 96);
  cluster.Submit("job",
                 {"train.steps=5", "train.global_batch_size=96", "train.micro_batch_size=1",
                  "model.hidden_size=128", "model.num_hidden_layers=8",
                  "parallel.data_parallel_size=96", "parallel.pipeline_model_parallel_size=1"});
  EXPECT_EQ(cluster.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED)
      << cluster.Status("job").message();
  EXPECT_EQ(cluster.Status("job").attempt(), 1);
}

// 140 stages on two machines: each rank has five streams to each of the 70 stages elsewhere.
TEST(LimitsTest, AJobWhoseRanksNeedMoreDescriptorsThanTheirMachinesAllowIsRefusedAtTheSubmit) {
  Cluster cluster;
  cluster.StartDriver();
  cluster.RunAgentsUnder({"/usr/bin/prlimit", "--nofile=413"});
  for (const int agent : {0, 1}) cluster.StartAgent(agent, 70);
  ASSERT_TRUE(cluster.WaitForAgents(2));
  const CommandResult refused = cluster.Megascale(
      {"submit", cluster.directory() + "/job.yaml", "--job-id", "wide", "--set",
       "parallel.data_parallel_size=1", "--set", "parallel.pipeline_model_parallel_size=140",
       "--set", "model.num_hidden_layers=140", "--set", "train.global_batch_size=140", "--set",
       "train.micro_batch_size=1"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.err.find("node n0: descriptors: rank 0 needs 350 (pipeline group of 140 ranks) "
                             "+ 64 (the process) = 414, for its connections to other machines; the "
                             "limit is 413; "),
            std::string::npos)
      << refused.err;
  EXPECT_NE(cluster.Megascale({"status", "wide"}).exit_code, 0) << "it is in no queue";
}

TEST(LimitsTest, AQuotaOfCoresIsShownAndWarnedOf) {
  LimitedGroups groups;
  if (!groups.LimitCores()) GTEST_SKIP() << "no cpu control group can be made here";
  Cluster cluster;
  cluster.StartDriver();
  cluster.RunAgentsUnder(groups.Prefix());
  cluster.StartAgent(0, 4);
  cluster.Submit("job", {"train.steps=5"});
  EXPECT_EQ(cluster.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  const Job job = cluster.Status("job");
  ASSERT_GE(job.warnings_size(), 1);
  const std::string& warning = job.warnings(job.warnings_size() - 1);  // behind one of the MFU
  const std::string expected =
      "node n0: parallel.threads_per_rank: 4 ranks × 1 = 4 threads share 1.5 cores (cpu.";
  EXPECT_EQ(warning.substr(0, expected.size()), expected);
  EXPECT_NE(warning.find(groups.directories()[0]), std::string::npos) << warning;
  const std::string shown = cluster.Megascale({"status"}).out;
  EXPECT_NE(shown.find("  1.5    "), std::string::npos) << shown;
  EXPECT_NE(shown.find(" of " + groups.directories()[0]), std::string::npos) << shown;
}

TEST(LimitsTest, MinderFindsAndReportsTheMachineThatLacksCores) {
  LimitedGroups groups;
  if (!groups.LimitCores(20)) GTEST_SKIP() << "no cpu control group can be made here";
  Cluster cluster;
  cluster.StartDriver();
  for (const int agent : {0, 1, 2}) cluster.StartAgent(agent, 1);
  cluster.RunAgentsUnder(groups.Prefix());
  cluster.StartAgent(3, 1);
  cluster.Submit("job", {"train.steps=100000", "parallel.data_parallel_size=4",
                         "parallel.pipeline_model_parallel_size=1"});
  ASSERT_TRUE(cluster.WaitForStep("job", 1));
  const std::string log = cluster.directory() + "/minder.log";
  const pid_t minder = Spawn({Program(), "minder", "watch", "job", "--address", cluster.address(),
                              "--every", "2s", "--continuity", "6s", "-o", "json"},
                             log);
  EXPECT_TRUE(WaitUntil([&] { return cluster.Status("job").suspicion().node_id() == "n3"; }, 90))
      << base::ReadFile(log, 1 << 20).value_or("");
  const control::v1::Suspicion suspicion = cluster.Status("job").suspicion();
  EXPECT_EQ(suspicion.action(), "told: fault.on_suspect is not evict");
  EXPECT_EQ(suspicion.evidence_size(), 3);
  EXPECT_GT(suspicion.began_at().seconds(), suspicion.since().seconds() - 120);
  EXPECT_LT(suspicion.began_at().seconds(), suspicion.since().seconds())
      << "the fault began before it was reported";
  EXPECT_NE(cluster.Megascale({"status", "job"}).out.find("suspect: machine n3 differs"),
            std::string::npos);
  const auto log_text = [&] { return base::ReadFile(log, 1 << 20).value_or(""); };
  EXPECT_NE(log_text().find("\"machine\":\"n3\""), std::string::npos);
  cluster.KillDriver();
  cluster.StartDriver();
  const size_t so_far = log_text().size();
  EXPECT_TRUE(
      WaitUntil([&] { return log_text().find("\"verdict\"", so_far) != std::string::npos; }, 60))
      << "the watch outlives its driver: " << log_text();
  KillAndReap(minder);
  EXPECT_EQ(cluster.Megascale({"minder", "record", "job", "--out", cluster.directory() + "/a.csv"})
                .exit_code,
            0);
  const CommandResult trained =
      cluster.Megascale({"minder", "train", cluster.directory() + "/a.csv", "--epochs", "1",
                         "--out", cluster.directory() + "/models.json"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  const CommandResult checked =
      cluster.Megascale({"minder", "check", "job", "--models", cluster.directory() + "/models.json",
                         "--continuity", "6s", "--method", "raw", "-o", "json"});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  // Whom it names after six seconds depends on what else the machine does.
  EXPECT_NE(checked.out.find("\"machines_compared\":4"), std::string::npos) << checked.out;
  const CommandResult other =
      cluster.Megascale({"minder", "check", "job", "--models", cluster.directory() + "/a.csv"});
  EXPECT_NE(other.exit_code, 0);
  EXPECT_NE(other.err.find("a.csv"), std::string::npos) << other.err;
}

TEST(LimitsTest, AJobThatNeedsMoreMemoryThanItsGroupHasIsRefusedWithTheSum) {
  LimitedGroups groups;
  constexpr int64_t kLimit = int64_t{384} << 20;
  if (!groups.LimitMemory(kLimit)) GTEST_SKIP() << "no memory control group can be made here";
  Cluster cluster;
  cluster.StartDriver();
  cluster.RunAgentsUnder(groups.Prefix());
  cluster.StartAgent(0, 4);
  cluster.Submit("job", {"model.hidden_size=256", "train.micro_batch_size=8"});
  EXPECT_EQ(cluster.WaitForEnd("job"), control::v1::JOB_STATE_FAILED);
  const Job job = cluster.Status("job");
  EXPECT_EQ(job.attempt(), 1);
  EXPECT_EQ(job.reason(), "Refused");
  for (const std::string& part :
       {std::string("memory: the 4 ranks of this machine need "), std::string(" (snapshots) + "),
        std::string(" of 384.0 MiB are left by memory."), " of " + groups.directories()[0],
        std::string("train.micro_batch_size")}) {
    EXPECT_NE(job.message().find(part), std::string::npos)
        << part << " is not in " << job.message();
  }
  const std::string shown = cluster.Megascale({"status"}).out;
  EXPECT_NE(shown.find("384.0 MiB"), std::string::npos) << shown;
}

// The program of a machine without the CUDA toolkit, where gpu/no_gpu_device.cc is linked.
TEST(LimitsTest, AProgramBuiltWithoutCudaTrainsOnProcessorsAndRefusesGpusInOneLine) {
  Cluster cluster;
  cluster.UseProgram(Runfile("cli/megascale_without_cuda"));
  cluster.SetDriverFlags({"--machine-tests", "quick"});  // which ask for the machine's devices
  cluster.StartDriver();
  cluster.StartAgent(0, 4);
  cluster.Submit("gpu", {"device=cuda"});
  EXPECT_EQ(cluster.WaitForEnd("gpu"), control::v1::JOB_STATE_FAILED);
  const Job refused = cluster.Status("gpu");
  EXPECT_EQ(refused.reason(), "Refused");
  EXPECT_EQ(refused.attempt(), 1);
  const std::string line =
      "device: cuda: this program was built without CUDA; build it where the CUDA 13 toolkit is "
      "installed (CUDA_HOME, default /usr/local/cuda), or use device = cpu";
  EXPECT_NE(refused.message().find(line), std::string::npos) << refused.message();
  EXPECT_EQ(refused.message().find('\n'), std::string::npos) << refused.message();
  cluster.Submit("cpu", {"train.steps=5"});
  EXPECT_EQ(cluster.WaitForEnd("cpu"), control::v1::JOB_STATE_SUCCEEDED);
}

}  // namespace
}  // namespace megascale::e2e
