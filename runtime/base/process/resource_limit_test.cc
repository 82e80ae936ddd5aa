#include "runtime/base/process/resource_limit.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace megascale::base {
namespace {

// The files of a machine, as the kernel shows them, in a folder of the test.
class ResourceLimitTest : public ::testing::Test {
 protected:
  ResourceLimitTest() {
    root_ = ::testing::TempDir() + "resource_limit_test." +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
  }
  ~ResourceLimitTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file(root_ + path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void WriteMachine() const {
    Write(
        "/proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n");
    Write("/proc/vmstat", "nr_free_pages 9\noom_kill 5\n");
  }
  // A group of version 2 with 1 GiB of 3 used, 256 MiB of that page cache.
  void WriteVersion2(const std::string& group, const std::string& max) const {
    Write("/sys/fs/cgroup" + group + "/memory.max", max + "\n");
    Write("/sys/fs/cgroup" + group + "/memory.current", "1073741824\n");
    Write("/sys/fs/cgroup" + group + "/memory.stat",
          "anon 805306368\ninactive_file 268435456\nactive_file 0\n");
    Write("/sys/fs/cgroup" + group + "/memory.events", "low 0\noom 1\noom_kill 2\n");
  }

  std::string root_;
};

TEST_F(ResourceLimitTest, WithoutGroupsTheMachineIsTheLimit) {
  WriteMachine();
  const auto limit = LeastMemoryLimit(root_);
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->available_bytes, int64_t{8} << 30);
  EXPECT_EQ(limit->limit_bytes, int64_t{16} << 30);
  EXPECT_EQ(limit->source, "MemAvailable of this machine");
  EXPECT_EQ(CountOutOfMemoryKills(root_)->count, 5);
}

TEST_F(ResourceLimitTest, WithoutGroupsAllMemoryOfTheMachineIsTheSmallestLimit) {
  WriteMachine();
  EXPECT_EQ(SmallestMemoryLimit(root_)->limit_bytes, int64_t{16} << 30);
  EXPECT_EQ(SmallestMemoryLimit(root_)->source, "MemTotal of this machine");
}

TEST_F(ResourceLimitTest, NothingThatCanBeReadIsNoLimit) {
  EXPECT_FALSE(LeastMemoryLimit(root_).has_value());
  EXPECT_FALSE(CountOutOfMemoryKills(root_).has_value());
}

TEST_F(ResourceLimitTest, TheOwnGroupOfVersion2Counts) {
  WriteMachine();
  Write("/proc/self/cgroup", "0::/jobs/a\n");
  WriteVersion2("/jobs", "max");
  WriteVersion2("/jobs/a", "3221225472");
  const auto limit = LeastMemoryLimit(root_);
  EXPECT_EQ(limit->limit_bytes, int64_t{3} << 30);
  EXPECT_EQ(limit->available_bytes, (int64_t{2} << 30) + (256 << 20));
  EXPECT_EQ(limit->source, "memory.max of " + root_ + "/sys/fs/cgroup/jobs/a");
  const auto kills = CountOutOfMemoryKills(root_);
  EXPECT_EQ(kills->count, 2);
  EXPECT_EQ(kills->source, root_ + "/sys/fs/cgroup/jobs/a/memory.events");
}

TEST_F(ResourceLimitTest, AnAncestorMayBeTheTighterLimit) {
  WriteMachine();
  Write("/proc/self/cgroup", "0::/jobs/a\n");
  WriteVersion2("/jobs", "2147483648");
  WriteVersion2("/jobs/a", "3221225472");
  const auto limit = LeastMemoryLimit(root_);
  EXPECT_EQ(limit->limit_bytes, int64_t{2} << 30);
  EXPECT_EQ(limit->source, "memory.max of " + root_ + "/sys/fs/cgroup/jobs");
}

TEST_F(ResourceLimitTest, Version1CountsAndItsLargestNumberIsNoLimit) {
  WriteMachine();
  Write("/proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/slice/job\n0::/\n");
  const std::string group = "/sys/fs/cgroup/memory/slice/job";
  Write(group + "/memory.limit_in_bytes", "4294967296\n");
  Write(group + "/memory.usage_in_bytes", "4026531840\n");
  Write(group + "/memory.stat", "inactive_file 7\ntotal_inactive_file 0\n");
  Write(group + "/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const auto limit = LeastMemoryLimit(root_);
  EXPECT_EQ(limit->available_bytes, 256 << 20);
  EXPECT_EQ(limit->source, "memory.limit_in_bytes of " + root_ + group);
  EXPECT_EQ(CountOutOfMemoryKills(root_)->count, 4);
  EXPECT_EQ(ControlGroupsOf("memory", root_).size(), 4u);  // job, slice, the root; version 2's root
}

// A container sees its own group as the root, and may still be told the path on its host.
TEST_F(ResourceLimitTest, APathThatIsNotMountedMeansTheRootOfWhatIs) {
  WriteMachine();
  Write("/proc/self/cgroup", "0::/docker/0123\n");
  WriteVersion2("", "1610612736");
  const auto limit = LeastMemoryLimit(root_);
  EXPECT_EQ(limit->limit_bytes, 1610612736);
  EXPECT_EQ(limit->available_bytes, 1610612736 - (1 << 30) + (256 << 20));
}

TEST_F(ResourceLimitTest, AGroupThatIsOverItsLimitHasNothingLeft) {
  Write("/proc/self/cgroup", "0::/\n");
  WriteVersion2("", "1048576");
  EXPECT_EQ(LeastMemoryLimit(root_)->available_bytes, 0);
}

TEST_F(ResourceLimitTest, TheSmallestLimitDoesNotDependOnUse) {
  WriteMachine();
  Write("/proc/self/cgroup", "0::/jobs/a\n");
  WriteVersion2("/jobs", "17179869184");
  WriteVersion2("/jobs/a", "12884901888");
  const auto limit = SmallestMemoryLimit(root_);
  EXPECT_EQ(limit->limit_bytes, int64_t{12} << 30);
  EXPECT_EQ(limit->source, "memory.max of " + root_ + "/sys/fs/cgroup/jobs/a");
  // The machine has less memory left than the group, although its limit is larger.
  EXPECT_EQ(LeastMemoryLimit(root_)->source, "MemAvailable of this machine");
}

TEST_F(ResourceLimitTest, WithoutAQuotaTheCoresOfTheMachineAreTheLimit) {
  const double cores = std::thread::hardware_concurrency();
  EXPECT_EQ(SmallestCpuLimit(root_).cores, cores);
  EXPECT_EQ(SmallestCpuLimit(root_).source, "cores of this machine");
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/x\n0::/jobs\n");
  Write("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/unified/jobs/cpu.max", "max 100000\n");
  EXPECT_EQ(SmallestCpuLimit(root_).cores, cores);
}

TEST_F(ResourceLimitTest, TheQuotaOfVersion2Counts) {
  Write("/proc/self/cgroup", "0::/jobs/a\n");
  Write("/sys/fs/cgroup/jobs/cpu.max", "75000 100000\n");
  Write("/sys/fs/cgroup/jobs/a/cpu.max", "90000 100000\n");
  const CpuLimit limit = SmallestCpuLimit(root_);
  EXPECT_EQ(limit.cores, 0.75);
  EXPECT_EQ(limit.source, "cpu.max of " + root_ + "/sys/fs/cgroup/jobs");
}

TEST_F(ResourceLimitTest, TheQuotaOfVersion1CountsWhereverItIsMounted) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/x\n");
  const std::string joined = "/sys/fs/cgroup/cpu,cpuacct/x";
  Write(joined + "/cpu.cfs_quota_us", "25000\n");
  Write(joined + "/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(SmallestCpuLimit(root_).cores, 0.5);
  EXPECT_EQ(SmallestCpuLimit(root_).source, "cpu.cfs_quota_us of " + root_ + joined);
  std::filesystem::create_directory_symlink(root_ + "/sys/fs/cgroup/cpu,cpuacct",
                                            root_ + "/sys/fs/cgroup/cpu");
  EXPECT_EQ(SmallestCpuLimit(root_).source,
            "cpu.cfs_quota_us of " + root_ + "/sys/fs/cgroup/cpu/x");
}

TEST_F(ResourceLimitTest, AQuotaThatIsNoneIsStruckOut) {
  Write("/proc/self/cgroup", "0::/jobs\n");
  for (const char* text : {"", "0 100000", "5000", "5000 0", "5000 x", "nonsense"}) {
    Write("/sys/fs/cgroup/jobs/cpu.max", text);
    EXPECT_EQ(SmallestCpuLimit(root_).source, "cores of this machine") << text;
  }
}

// Makes a control group below this test's own, with half a core; "" if the kernel permits none.
std::string MakeGroupOfHalfACore() {
  for (const ControlGroup& own : ControlGroupsOf("cpu")) {
    const std::string group = own.directory + "/megascale-test-" + std::to_string(::getpid());
    if (::mkdir(group.c_str(), 0755) != 0) continue;
    std::ofstream quota(group + (own.version == 1 ? "/cpu.cfs_quota_us" : "/cpu.max"));
    std::ofstream period(group + "/cpu.cfs_period_us");
    if (own.version == 1) period << "100000" << std::flush;
    quota << (own.version == 1 ? "50000" : "50000 100000") << std::flush;
    if (quota.good()) return group;
    ::rmdir(group.c_str());
  }
  return "";
}

TEST(RealControlGroupTest, AProcessInAGroupOfHalfACoreSeesHalfACore) {
  const std::string group = MakeGroupOfHalfACore();
  if (group.empty()) GTEST_SKIP() << "no cpu control group can be made here";
  const pid_t child = ::fork();
  if (child == 0) {
    std::ofstream(group + "/cgroup.procs") << "0" << std::flush;
    const CpuLimit limit = SmallestCpuLimit();
    ::_exit(limit.cores == 0.5 && limit.source.find(group) != std::string::npos ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(::rmdir(group.c_str()), 0);
}

TEST(FormatBytesTest, PicksTheUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(int64_t{3} << 30), "3.0 GiB");
}

}  // namespace
}  // namespace megascale::base
