#include "runtime/telemetry/stack/process_stacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/agent.pb.h"
#include "proto/link.pb.h"
#include "runtime/base/frame.h"

namespace megascale::telemetry {

// Not in an anonymous namespace, and not inlined: their names are what the tests look for.
__attribute__((noinline)) void StandStill(int ready) {
  if (ready >= 0) (void)!::write(ready, "x", 1);
  for (;;) ::pause();
}
__attribute__((noinline)) int SpinForEver(const std::atomic<bool>& end) {
  int count = 0;
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
      std::thread spins([&end] { SpinForEver(end); });
      ::pthread_setname_np(spins.native_handle(), "compute");
      StandStill(ends[1]);
    }
    char byte;
    ASSERT_EQ(::read(ends[0], &byte, 1), 1);
    ::close(ends[0]);
    ::close(ends[1]);
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
    for (;;) (void)ReadStacks(child_);
  }
  ::kill(child_, SIGTERM);
  int status = 0;
  EXPECT_EQ(::waitpid(child_, &status, 0), child_);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  ::kill(reader, SIGKILL);
  ::waitpid(reader, nullptr, 0);
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

}  // namespace
}  // namespace megascale::telemetry
