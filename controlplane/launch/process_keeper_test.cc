#include "controlplane/launch/process_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"

namespace megascale::launch {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(20);

std::string ChildProgram() {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"),
                      "/controlplane/launch/testing/test_child");
}

bool WaitUntil(const std::function<bool()>& condition) {
  const absl::Duration end = base::RealClock().Monotonic() + kDeadline;
  while (!condition()) {
    if (base::RealClock().Monotonic() > end) return false;
    ::poll(nullptr, 0, 5);
  }
  return true;
}

// True if the process is gone, or dead and waiting for another parent to reap it.
bool IsGone(pid_t pid) {
  const auto stat = base::ReadFile(absl::StrCat("/proc/", pid, "/stat"), 1 << 16);
  if (!stat.ok()) return true;
  return stat->at(stat->rfind(')') + 2) == 'Z';
}

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    read = base::UniqueFd(ends[0]);
    write = base::UniqueFd(ends[1]);
  }
  // Reads up to a newline or the end.
  std::string ReadLine() {
    write.reset();
    std::string line;
    char byte;
    while (::read(read.get(), &byte, 1) == 1 && byte != '\n') line.push_back(byte);
    return line;
  }
  pid_t ReadPid() {
    pid_t pid = 0;
    EXPECT_TRUE(absl::SimpleAtoi(ReadLine(), &pid));
    return pid;
  }
  base::UniqueFd read, write;
};

SpawnRequest Request(int64_t token, std::vector<std::string> arguments) {
  SpawnRequest request;
  request.token = token;
  request.program = ChildProgram();
  request.arguments = std::move(arguments);
  request.arguments.insert(request.arguments.begin(), "child");
  return request;
}

class ProcessKeeperTest : public testing::Test {
 protected:
  void SetUp() override {
    auto keeper = ProcessKeeper::Start({});
    ASSERT_TRUE(keeper.ok()) << keeper.status();
    keeper_ = *std::move(keeper);
  }

  ProcessExit NextExit() {
    pollfd entry = {keeper_->exits_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(kDeadline))), 1);
    const auto exits = keeper_->TakeExits();
    EXPECT_TRUE(exits.ok()) << exits.status();
    return exits.ok() && exits->size() == 1 ? exits->front() : ProcessExit();
  }

  std::unique_ptr<ProcessKeeper> keeper_;
};

TEST_F(ProcessKeeperTest, ReportsTheExitStatusOfAChild) {
  const auto pid = keeper_->Spawn(Request(7, {"exit", "3"}));
  ASSERT_TRUE(pid.ok()) << pid.status();
  const ProcessExit exited = NextExit();
  EXPECT_EQ(exited.token, 7);
  EXPECT_EQ(exited.pid, *pid);
  EXPECT_EQ(DescribeExit(exited.status), "exited with status 3");
}

TEST_F(ProcessKeeperTest, KillsAChildWithASignal) {
  ASSERT_TRUE(keeper_->Spawn(Request(1, {"pause"})).ok());
  ASSERT_TRUE(keeper_->Kill(1, SIGKILL).ok());
  const ProcessExit exited = NextExit();
  EXPECT_EQ(exited.token, 1);
  EXPECT_EQ(DescribeExit(exited.status), "killed by signal 9 (Killed)");
  EXPECT_TRUE(exited.killed);
  EXPECT_TRUE(keeper_->Kill(1, SIGKILL).ok());  // long reaped: no error, no signal to a stranger
}

TEST_F(ProcessKeeperTest, AChildThatDiedBeforeItsKillWasNotKilledByIt) {
  const auto pid = keeper_->Spawn(Request(1, {"pause"}));
  ASSERT_TRUE(pid.ok()) << pid.status();
  // The keeper sees the command and the death at once.
  ::kill(keeper_->pid(), SIGSTOP);
  ::kill(*pid, SIGKILL);
  ASSERT_TRUE(WaitUntil([&] { return IsGone(*pid); }));
  ASSERT_TRUE(keeper_->Kill(1, SIGKILL).ok());
  ::kill(keeper_->pid(), SIGCONT);
  const ProcessExit exited = NextExit();
  EXPECT_EQ(DescribeExit(exited.status), "killed by signal 9 (Killed)");
  EXPECT_FALSE(exited.killed);
}

// The main thread has ended, as in a process with many threads that is being torn down: peers may
// already know, but the process cannot be reaped yet.
TEST_F(ProcessKeeperTest, AChildThatIsEndingWasNotKilledByAKill) {
  Pipe output;
  SpawnRequest request = Request(1, {"linger"});
  request.output = output.write.get();
  const auto pid = keeper_->Spawn(request);
  ASSERT_TRUE(pid.ok()) << pid.status();
  ASSERT_EQ(output.ReadLine(), "lingers");
  ASSERT_TRUE(WaitUntil([&] { return IsGone(*pid); }));
  ASSERT_TRUE(keeper_->Kill(1, SIGKILL).ok());
  EXPECT_FALSE(NextExit().killed);
}

TEST_F(ProcessKeeperTest, SaysWhyAProgramCannotBeStarted) {
  SpawnRequest request = Request(1, {});
  request.program = "/no/such/program";
  EXPECT_EQ(keeper_->Spawn(request).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(keeper_->Spawn(Request(2, {"exit", "0"})).ok());
  EXPECT_EQ(NextExit().token, 2);
}

TEST_F(ProcessKeeperTest, PassesDescriptorsUnderTheirNumbersAndOutput) {
  Pipe three, four, output;
  SpawnRequest request = Request(1, {"write", "4", "to four"});
  request.descriptors = {{three.write.get(), 3}, {four.write.get(), 4}};
  ASSERT_TRUE(keeper_->Spawn(request).ok());
  EXPECT_EQ(four.ReadLine(), "to four");
  request = Request(2, {"write", "3", "to three"});
  request.descriptors = {{three.write.get(), 3}};
  ASSERT_TRUE(keeper_->Spawn(request).ok());
  EXPECT_EQ(three.ReadLine(), "to three");
  request = Request(3, {"write", "2", "to standard error"});
  request.output = output.write.get();
  ASSERT_TRUE(keeper_->Spawn(request).ok());
  EXPECT_EQ(output.ReadLine(), "to standard error");
}

// Any missing descriptor is reported, and the keeper goes on.
TEST_F(ProcessKeeperTest, NeedsFewDescriptorsAndSaysSoWhereThereAreTooFew) {
  struct rlimit before = {};
  ASSERT_EQ(::prlimit(keeper_->pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  int started = 0;
  for (rlim_t limit = 32; limit > 3; --limit) {
    const struct rlimit few = {limit, before.rlim_max};
    ASSERT_EQ(::prlimit(keeper_->pid(), RLIMIT_NOFILE, &few, nullptr), 0);
    Pipe three, output;
    SpawnRequest request = Request(static_cast<int64_t>(limit), {"write", "3", "to three"});
    request.descriptors = {{three.write.get(), 3}};
    request.output = output.write.get();
    const auto pid = keeper_->Spawn(request);
    if (pid.ok()) {
      EXPECT_EQ(three.ReadLine(), "to three");
      EXPECT_EQ(NextExit().token, request.token);
      ++started;
    } else {
      EXPECT_EQ(pid.status().code(), absl::StatusCode::kResourceExhausted) << pid.status();
      EXPECT_THAT(pid.status().message(), testing::HasSubstr("too many open files"));
    }
  }
  EXPECT_GT(started, 0);
  EXPECT_LT(started, 29);
  ASSERT_EQ(::prlimit(keeper_->pid(), RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_TRUE(keeper_->Spawn(Request(1, {"exit", "0"})).ok());
  EXPECT_EQ(NextExit().token, 1);
}

TEST_F(ProcessKeeperTest, GivesTheEnvironmentOfTheRequestBeforeItsOwn) {
  for (const auto& [name, expected] : {std::pair<std::string, std::string>("GIVEN", "by request"),
                                       {"TEST_WORKSPACE", "replaced"},
                                       {"TEST_SRCDIR", std::getenv("TEST_SRCDIR")}}) {
    Pipe output;
    static int64_t token = 0;
    SpawnRequest request = Request(++token, {"environment", name});
    request.environment = {"GIVEN=by request", "TEST_WORKSPACE=replaced"};
    request.output = output.write.get();
    ASSERT_TRUE(keeper_->Spawn(request).ok());
    EXPECT_EQ(output.ReadLine(), expected);
  }
}

TEST_F(ProcessKeeperTest, StopEndsEveryDescendant) {
  Pipe output;
  SpawnRequest request = Request(1, {"family"});
  request.output = output.write.get();
  const auto pid = keeper_->Spawn(request);
  ASSERT_TRUE(pid.ok());
  const pid_t grandchild = output.ReadPid();
  keeper_->Stop();
  EXPECT_TRUE(IsGone(*pid));
  EXPECT_TRUE(IsGone(grandchild));
}

TEST_F(ProcessKeeperTest, ChildrenDieWithAKilledKeeper) {
  const auto pid = keeper_->Spawn(Request(1, {"pause"}));
  ASSERT_TRUE(pid.ok());
  ::kill(keeper_->pid(), SIGKILL);
  EXPECT_TRUE(WaitUntil([&] { return IsGone(*pid); }));
  EXPECT_TRUE(WaitUntil([&] { return !keeper_->TakeExits().ok(); }));
  EXPECT_EQ(keeper_->Spawn(Request(2, {"pause"})).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ProcessKeeperTest, OneThatIsStoppedOwesTheAnswerToAPing) {
  ASSERT_EQ(keeper_->SilenceAt(absl::Seconds(1)), absl::ZeroDuration());
  ::kill(keeper_->pid(), SIGSTOP);
  keeper_->Ping(absl::Seconds(1));
  keeper_->Ping(absl::Seconds(3));  // it owes one already
  ASSERT_TRUE(keeper_->TakeExits().ok());
  EXPECT_EQ(keeper_->SilenceAt(absl::Seconds(7)), absl::Seconds(6));
  ::kill(keeper_->pid(), SIGCONT);
  EXPECT_TRUE(WaitUntil([&] {
    const auto exits = keeper_->TakeExits();
    return exits.ok() && exits->empty() &&
           keeper_->SilenceAt(absl::Seconds(8)) == absl::ZeroDuration();
  }));
  keeper_->Ping(absl::Seconds(9));
  EXPECT_TRUE(WaitUntil([&] {
    return keeper_->TakeExits().ok() &&
           keeper_->SilenceAt(absl::Seconds(10)) == absl::ZeroDuration();
  }));
  ASSERT_TRUE(keeper_->Spawn(Request(1, {"exit", "0"})).ok());
  EXPECT_EQ(NextExit().token, 1);
}

// Many kills leave no room for a ping while the keeper stands still.
TEST_F(ProcessKeeperTest, APingForWhichThereWasNoRoomIsSentLater) {
  ::kill(keeper_->pid(), SIGSTOP);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(keeper_->Kill(99, 0).ok());
  keeper_->Ping(absl::Seconds(1));
  EXPECT_EQ(keeper_->SilenceAt(absl::Seconds(3)), absl::Seconds(2));
  ::kill(keeper_->pid(), SIGCONT);
  EXPECT_TRUE(WaitUntil([&] {
    keeper_->Ping(absl::Seconds(2));
    return keeper_->TakeExits().ok() &&
           keeper_->SilenceAt(absl::Seconds(3)) == absl::ZeroDuration();
  }));
}

// It was asked long ago, by the real clock.
TEST_F(ProcessKeeperTest, NothingIsStartedThroughOneThatHasBeenSilentForLong) {
  ::kill(keeper_->pid(), SIGSTOP);
  keeper_->Ping(base::RealClock().Monotonic() - absl::Minutes(1));
  EXPECT_EQ(keeper_->Spawn(Request(1, {"exit", "0"})).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  ::kill(keeper_->pid(), SIGCONT);
  EXPECT_TRUE(WaitUntil([&] {
    return keeper_->TakeExits().ok() &&
           keeper_->SilenceAt(base::RealClock().Monotonic()) == absl::ZeroDuration();
  }));
  EXPECT_TRUE(keeper_->Spawn(Request(1, {"exit", "0"})).ok());
  EXPECT_EQ(NextExit().token, 1);
}

TEST_F(ProcessKeeperTest, RefusesToForkWhereThreadsRun) {
  Pipe hold;
  std::thread thread([&hold] {
    char byte;
    [[maybe_unused]] const ssize_t got = ::read(hold.read.get(), &byte, 1);
  });
  EXPECT_EQ(ProcessKeeper::Start({}).status().code(), absl::StatusCode::kFailedPrecondition);
  hold.write.reset();
  thread.join();
}

TEST(ProcessKeeperChainTest, NothingSurvivesAKilledParent) {
  std::string directory = "/tmp/ms-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  Pipe pids, family;
  const pid_t parent = ::fork();
  if (parent == 0) {
    ProcessKeeper::Options options;
    options.remove_at_end = {directory};
    auto keeper = ProcessKeeper::Start(options);
    SpawnRequest request = Request(1, {"family"});
    request.output = family.write.get();
    const auto child = (*keeper)->Spawn(request);
    ::dprintf(pids.write.get(), "%d\n%d\n", (*keeper)->pid(), *child);
    for (;;) ::pause();
  }
  const pid_t keeper = pids.ReadPid();
  const pid_t child = pids.ReadPid();
  const pid_t grandchild = family.ReadPid();
  ASSERT_FALSE(IsGone(keeper) || IsGone(child) || IsGone(grandchild));
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  for (const pid_t pid : {child, grandchild, keeper}) {
    EXPECT_TRUE(WaitUntil([&] { return IsGone(pid); })) << pid;
  }
  EXPECT_NE(::access(directory.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace megascale::launch
