#include "runtime/base/memory_limit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace megascale::base {
namespace {

// The files of a machine, as the kernel shows them, in a folder of the test.
class MemoryLimitTest : public ::testing::Test {
 protected:
  MemoryLimitTest() {
    root_ = ::testing::TempDir() + "memory_limit_test." +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
  }
  ~MemoryLimitTest() override { std::filesystem::remove_all(root_); }

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

TEST_F(MemoryLimitTest, WithoutGroupsTheMachineIsTheLimit) {
  WriteMachine();
  const auto limit = LeastMemoryLimit(root_);
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->available_bytes, int64_t{8} << 30);
  EXPECT_EQ(limit->limit_bytes, int64_t{16} << 30);
  EXPECT_EQ(limit->source, "MemAvailable of this machine");
  EXPECT_EQ(CountOutOfMemoryKills(root_)->count, 5);
}

TEST_F(MemoryLimitTest, NothingThatCanBeReadIsNoLimit) {
  EXPECT_FALSE(LeastMemoryLimit(root_).has_value());
  EXPECT_FALSE(CountOutOfMemoryKills(root_).has_value());
}

TEST_F(MemoryLimitTest, TheOwnGroupOfVersion2Counts) {
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

TEST_F(MemoryLimitTest, AnAncestorMayBeTheTighterLimit) {
  WriteMachine();
  Write("/proc/self/cgroup", "0::/jobs/a\n");
  WriteVersion2("/jobs", "2147483648");
  WriteVersion2("/jobs/a", "3221225472");
  const auto limit = LeastMemoryLimit(root_);
  EXPECT_EQ(limit->limit_bytes, int64_t{2} << 30);
  EXPECT_EQ(limit->source, "memory.max of " + root_ + "/sys/fs/cgroup/jobs");
}

TEST_F(MemoryLimitTest, Version1CountsAndItsLargestNumberIsNoLimit) {
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
  EXPECT_EQ(MemoryGroups(root_).size(), 4u);  // job, slice, the root; version 2's root
}

// A container sees its own group as the root, and may still be told the path on its host.
TEST_F(MemoryLimitTest, APathThatIsNotMountedMeansTheRootOfWhatIs) {
  WriteMachine();
  Write("/proc/self/cgroup", "0::/docker/0123\n");
  WriteVersion2("", "1610612736");
  const auto limit = LeastMemoryLimit(root_);
  EXPECT_EQ(limit->limit_bytes, 1610612736);
  EXPECT_EQ(limit->available_bytes, 1610612736 - (1 << 30) + (256 << 20));
}

TEST_F(MemoryLimitTest, AGroupThatIsOverItsLimitHasNothingLeft) {
  Write("/proc/self/cgroup", "0::/\n");
  WriteVersion2("", "1048576");
  EXPECT_EQ(LeastMemoryLimit(root_)->available_bytes, 0);
}

TEST(FormatBytesTest, PicksTheUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(int64_t{3} << 30), "3.0 GiB");
}

}  // namespace
}  // namespace megascale::base
