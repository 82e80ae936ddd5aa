// Control groups that limit an agent's cores and memory: `status` shows the limits, and the
// preflight warns of them or refuses the job before a worker starts.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/process/resource_limit.h"
#include "tests/e2e/cluster.h"

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
  bool LimitCores() {
    return Make("cpu", {{"cpu.cfs_period_us", "100000"}, {"cpu.cfs_quota_us", "150000"}},
                {{"cpu.max", "150000 100000"}});
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

}  // namespace
}  // namespace megascale::e2e
