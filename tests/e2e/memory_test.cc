// The agent tells a worker that the kernel killed at a real memory limit from one that somebody
// killed, and the job goes on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/process/resource_limit.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;

bool Write(const std::string& path, const std::string& text) {
  const base::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return fd.valid() && base::WriteAll(fd.get(), text).ok();
}

// A memory control group below this test's own.
class ControlGroup {
 public:
  ControlGroup() {
    for (const base::ControlGroup& own : base::ControlGroupsOf("memory")) {
      version_ = own.version;
      directory_ = absl::StrCat(own.directory, "/megascale-e2e-", ::getpid());
      if (::mkdir(directory_.c_str(), 0755) != 0) continue;
      if (UsedBytes() >= 0) return;
      ::rmdir(directory_.c_str());
    }
    directory_.clear();
  }
  ~ControlGroup() {
    if (!directory_.empty()) {
      EXPECT_TRUE(WaitUntil([this] { return ::rmdir(directory_.c_str()) == 0; }, 20));
    }
  }

  bool exists() const { return !directory_.empty(); }
  const std::string& directory() const { return directory_; }
  int64_t UsedBytes() const {
    const auto text = base::ReadFile(
        directory_ + (version_ == 1 ? "/memory.usage_in_bytes" : "/memory.current"), 64);
    int64_t bytes = -1;
    return text.ok() && absl::SimpleAtoi(*text, &bytes) ? bytes : -1;
  }
  bool Limit(int64_t bytes) const {
    return Write(directory_ + (version_ == 1 ? "/memory.limit_in_bytes" : "/memory.max"),
                 absl::StrCat(bytes));
  }

 private:
  std::string directory_;
  int version_ = 2;
};

// Starts a process in the group that takes memory until `victim` is gone. The kernel must then kill
// a process of the group, and `victim` is its preferred one.
pid_t TakeMemoryUntilGone(const ControlGroup& group, pid_t victim) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!Write(group.directory() + "/cgroup.procs", "0")) ::_exit(1);
  constexpr size_t kPiece = 256 << 10;
  while (IsAlive(victim)) {
    void* piece =
        ::mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (piece == MAP_FAILED) ::_exit(2);
    std::memset(piece, 1, kPiece);
  }
  ::_exit(0);
}

TEST(MemoryTest, AWorkerKilledAtARealLimitIsOutOfMemoryAndIsReplaced) {
  const ControlGroup group;
  if (!group.exists()) GTEST_SKIP() << "no memory control group can be made here";
  Cluster cluster;
  cluster.UseControlGroup(group.directory());
  cluster.StartDriver();
  cluster.StartAgent(0, 4);
  cluster.Submit("job");
  ASSERT_TRUE(cluster.WaitForStep("job", 40));
  const Job before = cluster.Status("job");
  ASSERT_EQ(before.ranks_size(), 4);
  const pid_t victim = before.ranks(2).status().pid();
  if (!Write(absl::StrCat("/proc/", victim, "/oom_score_adj"), "1000")) {
    GTEST_SKIP() << "this user may not choose whom the kernel kills";
  }
  constexpr int64_t kRoom = 64 << 20;
  ASSERT_TRUE(group.Limit(group.UsedBytes() + kRoom));
  const pid_t taker = TakeMemoryUntilGone(group, victim);
  // Until the victim's memory is free, the kernel may kill this process, too.
  const int taken = WaitForExit(taker, 60);
  EXPECT_TRUE(taken == 0 || taken == SIGKILL) << taken;
  EXPECT_EQ(cluster.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  const Job after = cluster.Status("job");
  EXPECT_EQ(after.attempt(), before.attempt() + 1);
  EXPECT_EQ(after.culprit().rank(), 2);
  EXPECT_EQ(after.culprit().failure_class(), telemetry::v1::FAILURE_CLASS_OUT_OF_MEMORY);
  const std::string& evidence = after.culprit().evidence();
  for (const char* part : {"killed by the kernel: out of memory", "MiB when last seen",
                           "the limit is", "train.micro_batch_size", "instructions completed"}) {
    EXPECT_NE(evidence.find(part), std::string::npos) << part << " is not in: " << evidence;
  }
  ASSERT_TRUE(group.Limit(group.UsedBytes() + (int64_t{4} << 30)));
  cluster.Submit("calm");
  ASSERT_EQ(cluster.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster.Digest("job"), cluster.Digest("calm"));
}

}  // namespace
}  // namespace megascale::e2e
