// Absent machines come back: they froze, were replaced, and thaw with processes of an attempt that
// is over. For an absent driver see driver_absence_test.
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

// A step of a paced job takes a tenth of a second.
constexpr int kStepsOfAbsences = 200;
constexpr int kStepsOfReports = 160;

struct Ended {
  std::string digest;
  std::vector<std::string> losses;
};

Ended EndOf(const Cluster& cluster, const std::string& job_id) {
  EXPECT_EQ(cluster.WaitForEnd(job_id), control::v1::JOB_STATE_SUCCEEDED);
  return {cluster.Digest(job_id), cluster.LossLog(job_id)};
}

// Runs the test's job on two agents that are never absent, and not paced.
Ended CalmRun(const std::vector<std::string>& sets) {
  Cluster cluster;
  cluster.StartDriver();
  cluster.StartAgent(0, 2);
  cluster.StartAgent(1, 2);
  cluster.Submit("calm", sets);
  return EndOf(cluster, "calm");
}

void ExpectSameEnd(const Ended& ended, const Ended& calm, size_t num_steps) {
  EXPECT_EQ(calm.losses.size(), num_steps);
  EXPECT_EQ(ended.digest, calm.digest);
  EXPECT_EQ(ended.losses, calm.losses);
}

// All processes of one machine.
class Machine {
 public:
  explicit Machine(pid_t agent) : processes_(DescendantsOf(agent, "")) {
    processes_.insert(processes_.begin(), agent);
  }

  void Freeze() const { Signal(SIGSTOP); }
  void Thaw() const { Signal(SIGCONT); }
  // Returns the processes of jobs: all but the agent and its keeper.
  std::vector<pid_t> OfJobs() const { return DescendantsOf(processes_[0], "--link-fd"); }

 private:
  void Signal(int signal) const {
    for (const pid_t pid : processes_) ::kill(pid, signal);
  }
  std::vector<pid_t> processes_;
};

// Returns names and sizes of all files below a directory.
std::map<std::string, uintmax_t> Listing(const std::string& directory) {
  std::map<std::string, uintmax_t> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    files[entry.path().string()] = entry.is_regular_file() ? entry.file_size() : 0;
  }
  return files;
}

// Meanwhile the job's own hosts delete checkpoints all the time.
TEST(AbsenceTest, MachinesThatThawAfterTheyWereReplacedChangeNothing) {
  const std::vector<std::string> sets = {absl::StrCat("train.steps=", kStepsOfAbsences),
                                         "train.micro_batch_size=4", "checkpoint.keep=2"};
  const Ended calm = CalmRun(sets);
  Cluster cluster;
  cluster.PaceJobs();
  cluster.StartDriver();
  cluster.StartAgent(0, 2);
  cluster.StartAgent(1, 2);
  cluster.Submit("job", sets);
  ASSERT_TRUE(cluster.WaitForStep("job", 30));
  const std::string checkpoints = cluster.checkpoints("job");
  const auto replace = [&](int frozen, int by, int64_t attempt) {
    Machine machine(cluster.agent_pid(frozen));
    machine.Freeze();
    cluster.StartAgent(by, 2);
    // Wait until the job runs on the new machine, beyond the steps that the frozen one knew.
    EXPECT_TRUE(WaitUntil(
        [&] {
          const Job job = cluster.Status("job");
          return job.attempt() == attempt && job.state() == control::v1::JOB_STATE_RUNNING &&
                 job.last_checkpoint().attempt() == attempt;
        },
        90));
    const Job job = cluster.Status("job");
    EXPECT_EQ(job.culprit().node_id(), absl::StrCat("n", frozen));
    EXPECT_EQ(job.culprit().failure_class(), telemetry::v1::FAILURE_CLASS_UNREACHABLE);
    return machine;
  };
  // The driver accepts the machine's agent again, which ends its processes of the old attempt.
  const auto thaw = [&](const Machine& machine, const std::string& name) {
    const std::vector<pid_t> old = machine.OfJobs();
    EXPECT_GE(old.size(), 2u);
    machine.Thaw();
    for (const pid_t pid : old) {
      EXPECT_TRUE(WaitUntil([pid] { return !IsAlive(pid); }, 30)) << name << " process " << pid;
    }
    EXPECT_TRUE(WaitUntil(
        [&] { return absl::StrContains(cluster.Megascale({"status"}).out, name + "    alive"); },
        30))
        << cluster.Megascale({"status"}).out;
  };
  const Machine first = replace(1, 2, 2);
  const Machine second = replace(2, 3, 3);
  ASSERT_LT(cluster.Status("job").last_step(), kStepsOfAbsences * 2 / 3)
      << "too late to see what they do";
  thaw(first, "n1");
  ExpectSameEnd(EndOf(cluster, "job"), calm, kStepsOfAbsences);
  const auto before = Listing(checkpoints);
  const Job ended = cluster.Status("job");
  thaw(second, "n2");
  // A shard that its host was writing may still be finished, in a directory that no rank loads.
  const auto now = Listing(checkpoints);
  EXPECT_TRUE(std::includes(now.begin(), now.end(), before.begin(), before.end()));
  const Job after = cluster.Status("job");
  EXPECT_EQ(after.attempt(), 3);
  EXPECT_EQ(after.last_checkpoint().directory(), ended.last_checkpoint().directory());
  const auto kept = checkpoint::ListCheckpoints(checkpoints);
  ASSERT_TRUE(kept.ok()) << kept.status();
  ASSERT_EQ(kept->size(), 2u);
  for (const auto& checkpoint : *kept) EXPECT_EQ(checkpoint.attempt(), 3);
  EXPECT_EQ(
      cluster.Megascale({"checkpoint", "verify", after.last_checkpoint().directory()}).exit_code,
      0);
}

// The agent that reports steps stands still, and the job's processes go on. Its deputy reports them
// in its place; then the deputy stands still, and the first one does.
TEST(AbsenceTest, StepsGoOnIntoTheLossLogWhileTheAgentThatReportsThemStandsStill) {
  // A stopped agent would hold up checkpoints, for which the ranks wait.
  const std::string steps = absl::StrCat(kStepsOfReports);
  const std::vector<std::string> sets = {"train.steps=" + steps, "train.micro_batch_size=4",
                                         "checkpoint.interval=" + steps};
  const Ended calm = CalmRun(sets);
  Cluster cluster;
  cluster.PaceJobs();
  cluster.SetDriverFlags({"--node-timeout", "60s"});  // nobody counts as lost
  cluster.StartDriver();
  for (int i = 0; i < 4; ++i) cluster.StartAgent(i, 1);
  cluster.Submit("job", sets);
  ASSERT_TRUE(cluster.WaitForStep("job", 30));
  const Job job = cluster.Status("job");
  // Ranks 2 and 3 are the last stage: the first one's agent reports, the other one's is its deputy.
  for (const int rank : {2, 3}) {
    const std::string node_id = job.ranks(rank).node_id();
    const pid_t agent = cluster.agent_pid(node_id.back() - '0');
    ASSERT_EQ(::kill(agent, SIGSTOP), 0);
    const int64_t known = cluster.Status("job").last_step();
    ASSERT_LT(known + 10, kStepsOfReports) << "too late to see anything";
    EXPECT_TRUE(cluster.WaitForStep("job", known + 10)) << node_id;
    ASSERT_EQ(::kill(agent, SIGCONT), 0);
  }
  ExpectSameEnd(EndOf(cluster, "job"), calm, kStepsOfReports);
  EXPECT_EQ(cluster.Status("job").attempt(), 1);
}

}  // namespace
}  // namespace megascale::e2e
