#include "controlplane/agent/evidence/out_of_memory_watch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"

namespace megascale::agent {
namespace {

using ::testing::HasSubstr;

constexpr char kRecord[] =
    "6,339,5140900,-;Memory cgroup out of memory: Killed process 71 (megascale) "
    "total-vm:4194304kB, anon-rss:131072kB, file-rss:1024kB, shmem-rss:0kB, UID:0\n SUBSYSTEM=x\n";

KillFacts Counted(int64_t explained, int64_t now) {
  KillFacts facts;
  facts.kills = base::OutOfMemoryKills{now, "/sys/fs/cgroup/j/memory.events"};
  facts.kills_explained = explained;
  facts.resident_bytes = int64_t{3} << 30;
  facts.limit = base::MemoryLimit{0, int64_t{4} << 30, "memory.max of /sys/fs/cgroup/j"};
  return facts;
}

TEST(OutOfMemoryTest, ACountThatRoseIsOutOfMemoryWithItsNumbers) {
  EXPECT_EQ(DescribeOutOfMemory(Counted(2, 3)),
            "killed by the kernel: out of memory (oom_kill of /sys/fs/cgroup/j/memory.events rose "
            "from 2 to 3); it held 3.0 GiB when last seen; the limit is 4.0 GiB, memory.max of "
            "/sys/fs/cgroup/j");
}

TEST(OutOfMemoryTest, AKillThatIsExplainedOtherwiseIsNone) {
  EXPECT_EQ(DescribeOutOfMemory(Counted(3, 3)), "");
  EXPECT_EQ(DescribeOutOfMemory({}), "");
}

TEST(OutOfMemoryTest, TheKernelsWordsStandEvenIfNothingCounts) {
  KillFacts facts;
  facts.kernel_line = "Out of memory: Killed process 71 (megascale)";
  EXPECT_THAT(DescribeOutOfMemory(facts), HasSubstr(facts.kernel_line));
}

TEST(OutOfMemoryTest, WhereNothingCountsAProcessNearTheLimitRanOut) {
  KillFacts facts = Counted(0, 0);
  facts.kills.reset();
  EXPECT_EQ(DescribeOutOfMemory(facts), "");
  facts.resident_bytes = (int64_t{4} << 30) - (1 << 20);
  EXPECT_THAT(DescribeOutOfMemory(facts), HasSubstr("it held nearly all"));
}

TEST(OutOfMemoryTest, TheKernelsLogIsReadForOneProcessAndItsLifetime) {
  const absl::Duration started = absl::Seconds(4);
  EXPECT_EQ(KernelKillText(kRecord, 71, started),
            "Memory cgroup out of memory: Killed process 71 (megascale) total-vm:4194304kB, "
            "anon-rss:131072kB, file-rss:1024kB, shmem-rss:0kB, UID:0");
  EXPECT_EQ(KernelKillText(kRecord, 7, started), "");
  EXPECT_EQ(KernelKillText(kRecord, 71, absl::Seconds(10)), "") << "another process of this id";
  EXPECT_EQ(KernelKillText("6,339,5140900,-;oom_reaper: reaped process 71 (x)", 71, started), "");
  EXPECT_EQ(KernelKillText("no record", 71, started), "");
}

TEST(OutOfMemoryTest, AProcessThatSomebodyKilledDidNotRunOut) {
  OutOfMemoryWatch watch;
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  watch.OnStarted(1, child, absl::Seconds(1));
  watch.Sample(absl::Seconds(2));
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(watch.OnEnded(1, /*killed=*/true), "");
  EXPECT_EQ(watch.OnEnded(2, /*killed=*/true), "") << "never started";
}

// Makes a control group of version 1 or 2 below this process's own, with a limit; returns "" if
// that is not possible.
std::string MakeLimitedGroup(int64_t bytes) {
  for (const base::ControlGroup& own : base::ControlGroupsOf("memory")) {
    const std::string group = absl::StrCat(own.directory, "/megascale-test-", ::getpid());
    if (::mkdir(group.c_str(), 0755) != 0) continue;
    const base::UniqueFd limit(::open(
        absl::StrCat(group, own.version == 1 ? "/memory.limit_in_bytes" : "/memory.max").c_str(),
        O_WRONLY | O_CLOEXEC));
    if (limit.valid() && base::WriteAll(limit.get(), absl::StrCat(bytes)).ok()) return group;
    ::rmdir(group.c_str());
  }
  return "";
}

bool Enter(const std::string& group) {
  const base::UniqueFd procs(::open((group + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
  return procs.valid() && base::WriteAll(procs.get(), absl::StrCat(::getpid())).ok();
}

// Runs in a child that plays the agent: the kernel kills one of its processes at a real limit, and
// the test kills another one. Returns the number of the check that failed; 0: all passed.
int PlayAgent(const std::string& group) {
  if (!Enter(group)) return 2;
  OutOfMemoryWatch watch;
  int ready[2];
  if (::pipe(ready) != 0) return 3;
  const pid_t greedy = ::fork();
  if (greedy == 0) {
    char go;
    if (::read(ready[0], &go, 1) != 1) ::_exit(1);
    constexpr size_t kPiece = 1 << 20;
    for (int i = 0; i < 4096; ++i) {
      void* piece =
          ::mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (piece == MAP_FAILED) ::_exit(1);
      std::memset(piece, 1, kPiece);
    }
    ::_exit(0);
  }
  const pid_t modest = ::fork();
  if (modest == 0) {
    for (;;) ::pause();
  }
  watch.OnStarted(1, greedy, absl::ZeroDuration());
  watch.OnStarted(2, modest, absl::ZeroDuration());
  watch.Sample(absl::Seconds(1));
  if (::write(ready[1], "x", 1) != 1) return 4;
  int status = 0;
  if (::waitpid(greedy, &status, 0) != greedy) return 5;
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) return 6;
  const std::string text = watch.OnEnded(1, true);
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
  if (text.find("out of memory") == std::string::npos) return 7;
  if (text.find("48.0 MiB") == std::string::npos) return 8;
  ::kill(modest, SIGKILL);
  if (::waitpid(modest, &status, 0) != modest) return 9;
  return watch.OnEnded(2, true).empty() ? 0 : 10;
}

TEST(OutOfMemoryTest, AKillAtARealLimitIsToldFromOneByHand) {
  const std::string group = MakeLimitedGroup(48 << 20);
  if (group.empty()) GTEST_SKIP() << "no memory control group can be made here";
  const pid_t agent = ::fork();
  if (agent == 0) ::_exit(PlayAgent(group));
  int status = 0;
  ASSERT_EQ(::waitpid(agent, &status, 0), agent);
  EXPECT_EQ(::rmdir(group.c_str()), 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace megascale::agent
