#include "runtime/telemetry/heartbeat.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "runtime/base/testing/test_kill.h"

namespace megascale::telemetry {
namespace {

std::unique_ptr<base::SharedMemory> MakeRegion(int num_slots) {
  auto region = base::SharedMemory::Create("heartbeat_test", HeartbeatBytes(num_slots)).value();
  FormatHeartbeats(*region);
  return region;
}

TEST(HeartbeatTest, AFreshSlotHasNoAges) {
  auto region = MakeRegion(2);
  const v1::RankStatus status = ReadHeartbeat(*region, 1, absl::Seconds(5));
  EXPECT_EQ(status.alive_age_seconds(), -1);
  EXPECT_EQ(status.progress_age_seconds(), -1);
  EXPECT_EQ(status.phase(), v1::PHASE_UNSPECIFIED);
  EXPECT_EQ(status.activity(), v1::ACTIVITY_UNSPECIFIED);
  EXPECT_EQ(status.instruction(), 0u);
}

TEST(HeartbeatTest, ReaderSeesWhatWasWrittenInItsSlotOnly) {
  auto region = MakeRegion(3);
  HeartbeatWriter writer(region.get(), 1);
  writer.SetPid(4711);
  writer.SetPhase(v1::PHASE_TRAINING);
  writer.SetStep(12);
  writer.Alive(absl::Seconds(10));
  writer.Progress(absl::Seconds(8));
  const plan::InstructionId instruction(plan::OpKind::kGatherParameters, 1);
  writer.SetDoing({.activity = v1::ACTIVITY_INSTRUCTION, .instruction = instruction, .peer = 5});
  const v1::RankStatus status = ReadHeartbeat(*region, 1, absl::Seconds(11));
  EXPECT_EQ(status.pid(), 4711);
  EXPECT_EQ(status.phase(), v1::PHASE_TRAINING);
  EXPECT_EQ(status.step(), 12);
  EXPECT_DOUBLE_EQ(status.alive_age_seconds(), 1);
  EXPECT_DOUBLE_EQ(status.progress_age_seconds(), 3);
  EXPECT_EQ(status.activity(), v1::ACTIVITY_INSTRUCTION);
  EXPECT_EQ(status.instruction(), instruction.packed());
  EXPECT_EQ(status.peer(), 5);
  EXPECT_EQ(status.doing(), "") << "words are made by who shows them";
  EXPECT_EQ(ReadHeartbeat(*region, 0, absl::Seconds(11)).pid(), 0);
  EXPECT_EQ(ReadHeartbeat(*region, 2, absl::Seconds(11)).pid(), 0);
}

TEST(HeartbeatTest, AnAgeIsNeverNegativeWhenTheWriterIsAheadOfTheReadersClock) {
  auto region = MakeRegion(1);
  HeartbeatWriter writer(region.get(), 0);
  writer.Alive(absl::Seconds(10));
  EXPECT_EQ(ReadHeartbeat(*region, 0, absl::Seconds(9)).alive_age_seconds(), 0);
}

TEST(HeartbeatTest, StartForgetsTheProcessBefore) {
  auto region = MakeRegion(1);
  HeartbeatWriter writer(region.get(), 0);
  writer.Alive(absl::Seconds(1));
  writer.SetStep(7);
  writer.SetDoing({.activity = v1::ACTIVITY_READ_CHECKPOINT});
  HeartbeatWriter(region.get(), 0).Start(99);
  const v1::RankStatus status = ReadHeartbeat(*region, 0, absl::Seconds(2));
  EXPECT_EQ(status.pid(), 99);
  EXPECT_EQ(status.alive_age_seconds(), -1);
  EXPECT_EQ(status.step(), 0);
  EXPECT_EQ(status.phase(), v1::PHASE_STARTING);
  EXPECT_EQ(status.activity(), v1::ACTIVITY_UNSPECIFIED);
  EXPECT_EQ(status.instruction(), 0u);
}

TEST(HeartbeatTest, AShareIsShownInPercentWithProgress) {
  auto region = MakeRegion(1);
  HeartbeatWriter writer(region.get(), 0);
  std::optional<ShownShare> share;
  share.emplace(&writer, v1::ACTIVITY_MAKE_WEIGHTS, 3'000'000'000);
  const auto expect = [&](int percent) {
    const v1::RankStatus status = ReadHeartbeat(*region, 0, base::RealClock().Monotonic());
    EXPECT_EQ(status.activity(), v1::ACTIVITY_MAKE_WEIGHTS);
    EXPECT_EQ(status.done(), percent);
    EXPECT_EQ(status.total(), 100);
    EXPECT_GE(status.progress_age_seconds(), 0);
  };
  expect(0);
  share->Add(1'000'000'000);
  expect(33);
  writer.Progress(absl::ZeroDuration());
  share->Add(1'999'000'000);
  expect(99);
  share->Add(1'000'000);
  expect(100);
  share.reset();
  EXPECT_EQ(ReadHeartbeat(*region, 0, base::RealClock().Monotonic()).activity(),
            v1::ACTIVITY_UNSPECIFIED);
  ShownShare(nullptr, v1::ACTIVITY_MAKE_WEIGHTS, 1).Add(1);  // nobody wants to know
}

v1::DeviceUse Use(const std::string& name, int64_t used_bytes) {
  v1::DeviceUse use;
  use.set_name(name);
  use.set_used_bytes(used_bytes);
  use.set_memory_bytes(int64_t{80} << 30);
  return use;
}

TEST(HeartbeatTest, ADeviceIsShownWithItsMemoryUntilTheNextProcessStarts) {
  auto region = MakeRegion(2);
  HeartbeatWriter writer(region.get(), 1);
  writer.Start(98);
  EXPECT_FALSE(ReadHeartbeat(*region, 1, {}).has_device());
  writer.SetDevice(Use("NVIDIA H100 80GB HBM3", 5));
  writer.SetDevice(Use("NVIDIA H100 80GB HBM3", int64_t{3} << 30));
  const v1::DeviceUse shown = ReadHeartbeat(*region, 1, {}).device();
  EXPECT_EQ(shown.name(), "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(shown.used_bytes(), int64_t{3} << 30);
  EXPECT_EQ(shown.memory_bytes(), int64_t{80} << 30);
  EXPECT_FALSE(ReadHeartbeat(*region, 0, {}).has_device());
  HeartbeatWriter(region.get(), 1).Start(99);
  EXPECT_FALSE(ReadHeartbeat(*region, 1, {}).has_device());
}

TEST(HeartbeatTest, ALongNameOfADeviceIsCut) {
  auto region = MakeRegion(2);
  HeartbeatWriter writer(region.get(), 0);
  writer.SetDevice(Use(std::string(200, 'x'), 1));
  EXPECT_EQ(ReadHeartbeat(*region, 0, {}).device().name(),
            std::string(HeartbeatWriter::kDeviceNameMax, 'x'));
  EXPECT_EQ(ReadHeartbeat(*region, 1, {}).pid(), 0) << "the next slot was written";
}

// Three values that belong together, so that a torn Doing is noticed.
Doing Nth(uint32_t n) {
  return {.activity = static_cast<v1::Activity>(1 + n % 8),
          .instruction = plan::InstructionId::FromPacked((uint64_t{n} << 32) + n),
          .peer = static_cast<int>(n)};
}

void ExpectWhole(const v1::RankStatus& status) {
  const auto n = static_cast<uint32_t>(status.peer());
  ASSERT_EQ(status.instruction(), Nth(n).instruction.packed());
  ASSERT_EQ(status.activity(), Nth(n).activity);
}

TEST(HeartbeatTest, EveryInstructionAndPeerFits) {
  auto region = MakeRegion(1);
  HeartbeatWriter writer(region.get(), 0);
  writer.SetDoing({.activity = v1::ACTIVITY_READ_FOR_PEER,
                   .instruction = plan::InstructionId::FromPacked(~uint64_t{0}),
                   .peer = -1,
                   .done = 12,
                   .total = 1 << 30});
  const v1::RankStatus status = ReadHeartbeat(*region, 0, {});
  EXPECT_EQ(status.activity(), v1::ACTIVITY_READ_FOR_PEER);
  EXPECT_EQ(status.instruction(), ~uint64_t{0});
  EXPECT_EQ(status.peer(), -1);
  EXPECT_EQ(status.done(), 12);
  EXPECT_EQ(status.total(), 1 << 30);
}

TEST(HeartbeatTest, WhatAProcessDoesIsNeverTornWhileItChanges) {
  auto region = MakeRegion(1);
  HeartbeatWriter writer(region.get(), 0);
  std::atomic<bool> stop = false;
  std::thread thread([&] {
    for (uint32_t n = 0; !stop.load(); ++n) writer.SetDoing(Nth(n));
  });
  // Reads while the writer goes through so many values.
  constexpr int kWrites = 10'000'000;
  for (int n = 0; n < kWrites && !HasFatalFailure();) {
    const v1::RankStatus status = ReadHeartbeat(*region, 0, {});
    if (status.activity() == v1::ACTIVITY_UNSPECIFIED) continue;
    ExpectWhole(status);
    n = status.peer();
  }
  stop.store(true);
  thread.join();
}

// A child changes what it does without end and is killed at whatever instruction it is.
TEST(HeartbeatTest, ReaderSurvivesAWriterThatWasKilled) {
  for (int round = 0; round < 20; ++round) {
    auto region = MakeRegion(1);
    ASSERT_NO_FATAL_FAILURE(base::KillOnceReady([&](const std::function<void()>& ready) {
      HeartbeatWriter writer(region.get(), 0);
      writer.SetStep(3);
      for (uint32_t n = 0;; ++n) {
        writer.SetDoing(Nth(n));
        if (n == 1000) ready();
      }
    }));
    const v1::RankStatus status = ReadHeartbeat(*region, 0, {});
    EXPECT_EQ(status.step(), 3);
    EXPECT_GE(status.peer(), 1000);
    ASSERT_NO_FATAL_FAILURE(ExpectWhole(status));
  }
}

TEST(HeartbeatTest, TimerSaysAliveUntilItIsDestroyed) {
  auto region = MakeRegion(1);
  HeartbeatWriter writer(region.get(), 0);
  base::FakeClock clock;
  {
    HeartbeatTimer timer(&writer, &clock);
    const absl::Time limit = absl::Now() + absl::Seconds(10);
    while (ReadHeartbeat(*region, 0, clock.Monotonic()).alive_age_seconds() < 0) {
      ASSERT_LT(absl::Now(), limit);
      std::this_thread::yield();
    }
  }
  EXPECT_EQ(ReadHeartbeat(*region, 0, clock.Monotonic()).alive_age_seconds(), 0);
}

}  // namespace
}  // namespace megascale::telemetry
