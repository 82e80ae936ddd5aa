// Tests of process_stacks.h and like_stacks.h.
#include "runtime/telemetry/stack/process_stacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/agent.pb.h"
#include "proto/link.pb.h"
#include "runtime/base/fd.h"
#include "runtime/base/frame.h"
#include "runtime/telemetry/stack/like_stacks.h"

namespace megascale::telemetry {

// Not in an anonymous namespace, and not inlined: their names are what the tests look for.
__attribute__((noinline)) void StandStill(int ready) {
  if (ready >= 0) (void)!::write(ready, "x", 1);
  for (;;) ::pause();
}
__attribute__((noinline)) int SpinForEver(const std::atomic<bool>& end, std::atomic<bool>* begun) {
  int count = 0;
  *begun = true;
  while (!end) ++count;
  return count;
}

namespace {

// A process with a main thread that stands still and a thread that computes.
class ProcessStacksTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    child_ = ::fork();
    if (child_ == 0) {
      std::atomic<bool> end{false};
      std::atomic<bool> begun{false};
      std::thread spins([&end, &begun] { SpinForEver(end, &begun); });
      ::pthread_setname_np(spins.native_handle(), "compute");
      while (!begun) ::sched_yield();
      StandStill(ends[1]);
    }
    char byte;
    ASSERT_EQ(::read(ends[0], &byte, 1), 1);
    ::close(ends[0]);
    ::close(ends[1]);
    AwaitSleep();
  }
  // Waits until the main thread sleeps: it runs for a moment after it was read.
  void AwaitSleep() const {
    const std::string path = absl::StrCat("/proc/", child_, "/stat");
    const absl::Time end = absl::Now() + absl::Seconds(60);
    while (absl::Now() < end) {
      const std::string stat = base::ReadFile(path, 4096).value_or("");
      if (absl::StrContains(stat, ") S ")) return;
      ::sched_yield();
    }
    FAIL() << "the child does not sleep";
  }
  void TearDown() override {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }

  static bool Holds(const v1::ThreadStack& stack, absl::string_view function) {
    return std::any_of(
        stack.frames().begin(), stack.frames().end(),
        [&](const v1::StackFrame& frame) { return absl::StrContains(frame.function(), function); });
  }
  // Expects both threads, each in its function.
  static void ExpectBoth(const v1::Evidence& evidence) {
    ASSERT_EQ(evidence.stacks_size(), 2) << evidence.DebugString();
    EXPECT_TRUE(Holds(evidence.stacks(0), "telemetry::StandStill(int)")) << evidence.DebugString();
    EXPECT_EQ(evidence.stacks(1).name(), "compute");
    EXPECT_TRUE(Holds(evidence.stacks(1), "telemetry::SpinForEver(")) << evidence.DebugString();
    EXPECT_EQ(evidence.stacks(0).frames(0).module().substr(0, 4), "libc");
    for (const v1::ThreadStack& stack : evidence.stacks()) EXPECT_EQ(stack.error(), "");
  }

  pid_t child_ = -1;
};

TEST_F(ProcessStacksTest, EachThreadIsToldWithItsFunctionsAndGoesOn) {
  for (int i = 0; i < 3; ++i) {
    AwaitSleep();
    const auto evidence = ReadStacks(child_);
    ASSERT_TRUE(evidence.ok()) << evidence.status();
    ExpectBoth(*evidence);
    EXPECT_EQ(evidence->stacks(0).state(), "S");
    EXPECT_EQ(evidence->stacks(1).state(), "R");
  }
}

TEST_F(ProcessStacksTest, AStoppedProcessIsReadAndStaysStopped) {
  ASSERT_EQ(::kill(child_, SIGSTOP), 0);
  ASSERT_EQ(::waitpid(child_, nullptr, WUNTRACED), child_);
  for (int i = 0; i < 2; ++i) {
    const auto evidence = ReadStacks(child_);
    ASSERT_TRUE(evidence.ok()) << evidence.status();
    ExpectBoth(*evidence);
    EXPECT_EQ(evidence->stacks(0).state(), "T");
  }
  ASSERT_EQ(::kill(child_, SIGCONT), 0);
  EXPECT_EQ(ReadStacks(child_)->stacks_size(), 2);
}

TEST_F(ProcessStacksTest, ASignalThatArrivesWhileAStackIsReadIsNotLost) {
  const pid_t reader = ::fork();
  if (reader == 0) {
    for (int i = 0; i < 100; ++i) (void)ReadStacks(child_);
    for (;;) ::pause();
  }
  ::kill(child_, SIGTERM);
  int status = 0;
  EXPECT_EQ(::waitpid(child_, &status, 0), child_);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  ::kill(reader, SIGKILL);
  ::waitpid(reader, nullptr, 0);
}

TEST_F(ProcessStacksTest, ThreadsForWhichNoTimeIsLeftSaySo) {
  const auto evidence = ReadStacks(child_, absl::ZeroDuration());
  ASSERT_TRUE(evidence.ok()) << evidence.status();
  ASSERT_EQ(evidence->stacks_size(), 2);
  for (const v1::ThreadStack& stack : evidence->stacks()) {
    EXPECT_EQ(stack.error(), "not read: no time was left");
  }
}

TEST_F(ProcessStacksTest, AThreadThatAnotherProcessTracesIsNamedAndTheOthersAreRead) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t tracer = ::fork();
  if (tracer == 0) {
    ::prctl(PR_SET_NAME, "debugger");
    const bool seized = ::ptrace(PTRACE_SEIZE, child_, nullptr, nullptr) == 0;
    (void)!::write(ends[1], seized ? "x" : "-", 1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  ASSERT_EQ(byte, 'x');
  const auto evidence = ReadStacks(child_);
  ::kill(tracer, SIGKILL);
  ::waitpid(tracer, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  ASSERT_TRUE(evidence.ok()) << evidence.status();
  ASSERT_EQ(evidence->stacks_size(), 2);
  EXPECT_EQ(evidence->stacks(0).error(),
            absl::StrCat("process ", tracer, " (debugger) traces it already"));
  EXPECT_TRUE(Holds(evidence->stacks(1), "telemetry::SpinForEver("));
}

TEST_F(ProcessStacksTest, AProcessThatHasEndedIsNotFoundThoughItWaitsForItsParent) {
  ::kill(child_, SIGKILL);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOWAIT), 0);
  const absl::Status status = ReadStacks(child_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
}

TEST_F(ProcessStacksTest, AProcessThatIsNotThereIsNotFound) {
  ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
  EXPECT_EQ(ReadStacks(child_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ProcessStacksTest, AStackProcessAnswersOnceAndEnds) {
  auto link = base::MakeSocketPair();
  ASSERT_TRUE(link.ok());
  link::v1::StackAssignment assignment;
  assignment.set_pid(child_);
  ASSERT_TRUE(
      base::SendFrame(link->first.get(), assignment.SerializeAsString(), {}, absl::Seconds(1))
          .ok());
  EXPECT_EQ(RunStackProcess(link->second.release()), 0);
  const auto frame = base::ReceiveFrame(link->first.get(), absl::Seconds(1));
  ASSERT_TRUE(frame.ok()) << frame.status();
  agent::v1::EvidenceChunk chunk;
  ASSERT_TRUE(chunk.ParseFromString(frame->payload));
  EXPECT_EQ(chunk.code(), 0) << chunk.message();
  ExpectBoth(chunk.evidence());
  ::alarm(0);
}

// --- like stacks --------------------------------------------------------------------------------

TEST(LikeStacksTest, TheOneThatDiffersComesFirst) {
  std::vector<RankStack> stacks;
  for (const int rank : {3, 2, 1, 0}) {
    stacks.push_back({rank, "megascale-w" + std::to_string(rank), {"poll", "Receive"}});
    stacks.push_back({rank, "compute",
                      rank == 2 ? std::vector<std::string>{"read", "Load"}
                                : std::vector<std::string>{"futex", "Wait"}});
    stacks.push_back({rank, "pool", {"futex"}});
    stacks.push_back({rank, "pool", {"futex"}});
  }
  const std::vector<LikeStacks> groups = PutTogether(stacks);
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].thread, "compute");
  EXPECT_THAT(groups[0].functions, testing::ElementsAre("read", "Load"));
  EXPECT_THAT(groups[0].ranks, testing::ElementsAre(2));
  EXPECT_THAT(groups[1].ranks, testing::ElementsAre(0, 1, 3));
  EXPECT_THAT(groups[2].ranks, testing::ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(groups[2].thread, "megascale-w") << "the rank's number is not part of the name";
  EXPECT_EQ(groups[3].thread, "pool");
  EXPECT_THAT(groups[3].ranks, testing::ElementsAre(0, 1, 2, 3)) << "each once";
  EXPECT_TRUE(PutTogether({}).empty());
}

TEST(LikeStacksTest, AFunctionIsShownWithoutWhatIsLongAboutIt) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"poll", "poll"},
      {"megascale::comm::Wait(int, std::function<void ()> const&)", "comm::Wait"},
      {"void megascale::comm::Each<int, std::pair<int, int> >(int)", "comm::Each"},
      {"megascale::engine::(anonymous namespace)::Load(absl::Span<float const>)", "engine::Load"},
      {"megascale::Stream::Run() const", "Stream::Run"},
      {"megascale::Stream::Run() [clone .cold]", "Stream::Run"},
      {"megascale::F(int)::{lambda(int)#2}::operator()(int) const", "F::{lambda#2}::operator"},
      {"megascale::operator<(megascale::A const&, megascale::A const&)", "operator<"},
      {"", ""},
      {"<<<(((", "<<<((("},
  };
  for (const auto& [function, wanted] : cases) EXPECT_EQ(ShortFunction(function), wanted);
}

}  // namespace
}  // namespace megascale::telemetry
