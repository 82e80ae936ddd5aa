// Slow but healthy processes are left alone: with storage that takes three times the heartbeat
// limit, a long first step, a machine that others keep busy, or a wall clock that is stepped. There
// is no recovery and no restart of a host, and the bits are the same.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/fanotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;
using testing::IsSupersetOf;

// A file system on which opening a file takes as long as the test says: the kernel asks this
// process before each open, and it answers late.
class SlowDisk {
 public:
  explicit SlowDisk(const std::string& path) : path_(path) {
    if (::unshare(CLONE_NEWNS) != 0) return;
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return;
    if (::mkdir(path.c_str(), 0700) != 0) return;
    if (::mount("megascale-test", path.c_str(), "tmpfs", 0, "size=64m") != 0) return;
    mounted_ = true;
    questions_ = base::UniqueFd(
        ::fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC | FAN_NONBLOCK, O_RDONLY | O_CLOEXEC));
    if (!questions_.valid()) return;
    if (::fanotify_mark(questions_.get(), FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_OPEN_PERM, AT_FDCWD,
                        path.c_str()) != 0) {
      return;
    }
    works_ = true;
    thread_ = std::thread([this] { Answer(); });
  }
  ~SlowDisk() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    questions_.reset();  // the kernel allows what was not answered
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }

  bool works() const { return works_; }
  void Hold() { holds_ = true; }
  void Release() { holds_ = false; }
  int num_held() const { return num_held_; }

 private:
  void Answer() {
    std::vector<int> held;
    while (!stop_) {
      pollfd entry = {questions_.get(), POLLIN, 0};
      ::poll(&entry, 1, 20);
      alignas(fanotify_event_metadata) char buffer[4096];
      ssize_t size = ::read(questions_.get(), buffer, sizeof(buffer));
      const auto* event = reinterpret_cast<const fanotify_event_metadata*>(buffer);
      for (; size > 0 && FAN_EVENT_OK(event, size); event = FAN_EVENT_NEXT(event, size)) {
        held.push_back(event->fd);
      }
      if (!holds_) {
        for (const int fd : held) {
          const fanotify_response allow = {fd, FAN_ALLOW};
          (void)!::write(questions_.get(), &allow, sizeof(allow));
          ::close(fd);
        }
        held.clear();
      }
      num_held_ = static_cast<int>(held.size());
    }
    for (const int fd : held) ::close(fd);
  }

  const std::string path_;
  bool mounted_ = false;
  bool works_ = false;
  base::UniqueFd questions_;
  std::thread thread_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> holds_ = false;
  std::atomic<int> num_held_ = 0;
};

// Shifts the wall clock of every process that is started during its life by whole days.
class SteppedClock {
 public:
  explicit SteppedClock(const std::string& path)
      : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    Set(0);
    ::setenv("MEGASCALE_TEST_CLOCK", path.c_str(), 1);
    ::setenv("LD_PRELOAD", Runfile("tests/e2e/libstepped_clock.so").c_str(), 1);
  }
  ~SteppedClock() {
    ::unsetenv("LD_PRELOAD");
    ::unsetenv("MEGASCALE_TEST_CLOCK");
  }

  void Set(int days) {
    const int64_t seconds = days * int64_t{24 * 60 * 60};
    EXPECT_EQ(::pwrite(file_.get(), &seconds, sizeof(seconds), 0), ssize_t{sizeof(seconds)});
  }

 private:
  const base::UniqueFd file_;
};

// Returns how many days from now the lines of a log were written, by the times at their beginnings.
std::set<int> DaysOf(const std::string& log) {
  std::set<int> days;
  const std::string text = base::ReadFile(log, 16 << 20).value_or("");
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::Time time;
    if (!absl::ParseTime(absl::RFC3339_full, line.substr(0, line.find(' ')), &time, nullptr)) {
      continue;
    }
    days.insert(
        static_cast<int>(std::lround(absl::FDivDuration(time - absl::Now(), absl::Hours(24)))));
  }
  return days;
}

// Has a run without faults to compare others with.
class FalseAlarmTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Cluster cluster;
    cluster.StartDriver();
    cluster.StartAgent(0, 4);
    cluster.Submit("calm");
    EXPECT_EQ(cluster.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);
    digest_ = new std::string(cluster.Digest("calm"));
  }
  static void TearDownTestSuite() { delete digest_; }

  static void ExpectNoRecoveryAndTheSameBits(const Cluster& cluster) {
    EXPECT_EQ(cluster.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
    const Job job = cluster.Status("job");
    EXPECT_EQ(job.attempt(), 1) << job.culprit().evidence();
    EXPECT_FALSE(job.has_culprit()) << job.culprit().evidence();
    EXPECT_EQ(cluster.Digest("job"), *digest_);
    // One for the preflight, one for the attempt.
    const std::string log = base::ReadFile(cluster.directory() + "/n0.log", 1 << 20).value_or("");
    const std::vector<std::string> pieces =
        absl::StrSplit(log, "started host of job job attempt 1");
    EXPECT_EQ(pieces.size(), 1u + 2u) << log;
  }

  static std::string* digest_;
};
std::string* FalseAlarmTest::digest_ = nullptr;

TEST_F(FalseAlarmTest, StorageThreeTimesSlowerThanTheHeartbeatLimitIsNoFailure) {
  Cluster cluster;
  const std::string path = cluster.directory() + "/disk";
  SlowDisk disk(path);
  if (!disk.works()) GTEST_SKIP() << "this user may not mount a file system and watch it";
  cluster.StartDriver();
  cluster.StartAgent(0, 4);
  constexpr int kHeartbeatSeconds = 2;
  cluster.Submit("job", {"checkpoint.interval=5", "checkpoint.directory=" + path,
                         "fault.heartbeat_interval=200ms",
                         absl::StrCat("fault.heartbeat_timeout=", kHeartbeatSeconds, "s")});
  ASSERT_TRUE(WaitUntil([&] { return cluster.Status("job").has_last_checkpoint(); }, 60));
  disk.Hold();
  ASSERT_TRUE(WaitUntil([&] { return disk.num_held() > 0; }, 60));
  const Job before = cluster.Status("job");
  const absl::Duration since = base::RealClock().Monotonic();
  const auto is_over = [&] {
    return base::RealClock().Monotonic() - since > absl::Seconds(3 * kHeartbeatSeconds);
  };
  ASSERT_TRUE(WaitUntil(is_over, 60));
  EXPECT_GT(disk.num_held(), 0);
  const Job during = cluster.Status("job");
  EXPECT_EQ(during.state(), control::v1::JOB_STATE_RUNNING) << during.message();
  EXPECT_EQ(during.last_checkpoint().step(), before.last_checkpoint().step());
  disk.Release();
  ExpectNoRecoveryAndTheSameBits(cluster);
}

TEST_F(FalseAlarmTest, AFirstStepLongerThanTheHeartbeatLimitIsNoFailure) {
  Cluster cluster;
  cluster.StartDriver();
  cluster.StartAgent(0, 1);
  cluster.Submit(
      "job", {"train.steps=1", "model.hidden_size=256", "train.seq_length=256",
              "train.global_batch_size=128", "train.micro_batch_size=8", "optimizer.warmup_steps=0",
              "parallel.data_parallel_size=1", "parallel.pipeline_model_parallel_size=1",
              "fault.heartbeat_interval=100ms", "fault.heartbeat_timeout=800ms"});
  EXPECT_EQ(cluster.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  const Job job = cluster.Status("job");
  EXPECT_EQ(job.attempt(), 1) << job.culprit().evidence();
  EXPECT_GT(job.last_record().seconds(), 0.8) << "the step is too short to say anything";
}

TEST_F(FalseAlarmTest, AMachineThatOthersKeepBusyIsNoFailure) {
  Cluster cluster;
  std::vector<pid_t> busy;
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i) {
    busy.push_back(Spawn({"/bin/sh", "-c", "while :; do :; done"}, "/dev/null"));
  }
  cluster.StartDriver();
  cluster.StartAgent(0, 2);
  cluster.StartAgent(1, 2);
  cluster.Submit("job");
  ExpectNoRecoveryAndTheSameBits(cluster);
  for (const pid_t pid : busy) KillAndReap(pid);
}

// The wall clock of driver, agent, host and workers moves by days.
TEST_F(FalseAlarmTest, AWallClockThatIsSteppedIsNoFailure) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "a sanitizer has to be the first library of a process";
#endif
  Cluster cluster;
  SteppedClock clock(cluster.directory() + "/clock");
  cluster.StartDriver();
  cluster.StartAgent(0, 4);
  clock.Set(1);
  cluster.Submit("job", {"fault.heartbeat_interval=200ms", "checkpoint.interval=10"});
  int64_t step = 0;
  for (const int days : {-1, 1, 0}) {
    // At least one checkpoint is made at each setting of the clock.
    ASSERT_TRUE(
        WaitUntil([&] { return cluster.Status("job").last_checkpoint().step() >= step + 20; }, 60));
    step = cluster.Status("job").last_checkpoint().step();
    clock.Set(days);
  }
  ExpectNoRecoveryAndTheSameBits(cluster);
  const std::string agent = cluster.directory() + "/n0";
  const std::string processes = agent + "/logs/job/attempt-1";
  EXPECT_THAT(DaysOf(cluster.directory() + "/driver.log"), IsSupersetOf({-1, 0, 1}));
  EXPECT_THAT(DaysOf(agent + ".log"), IsSupersetOf({0, 1}));
  EXPECT_THAT(DaysOf(processes + "/host.0.log"), IsSupersetOf({-1, 1}));
  EXPECT_THAT(DaysOf(processes + "/rank-00000.0.log"), IsSupersetOf({1}));
}

}  // namespace
}  // namespace megascale::e2e
