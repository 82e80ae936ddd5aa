#include "runtime/telemetry/heartbeat.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
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
  EXPECT_EQ(status.doing(), "");
}

TEST(HeartbeatTest, ReaderSeesWhatWasWrittenInItsSlotOnly) {
  auto region = MakeRegion(3);
  HeartbeatWriter writer(region.get(), 1);
  writer.SetPid(4711);
  writer.SetPhase(v1::PHASE_TRAINING);
  writer.SetStep(12);
  writer.Alive(absl::Seconds(10));
  writer.Progress(absl::Seconds(8));
  writer.SetDoing("all-gather of parameters G.c1");
  const v1::RankStatus status = ReadHeartbeat(*region, 1, absl::Seconds(11));
  EXPECT_EQ(status.pid(), 4711);
  EXPECT_EQ(status.phase(), v1::PHASE_TRAINING);
  EXPECT_EQ(status.step(), 12);
  EXPECT_DOUBLE_EQ(status.alive_age_seconds(), 1);
  EXPECT_DOUBLE_EQ(status.progress_age_seconds(), 3);
  EXPECT_EQ(status.doing(), "all-gather of parameters G.c1");
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
  writer.SetDoing("old");
  HeartbeatWriter(region.get(), 0).Start(99);
  const v1::RankStatus status = ReadHeartbeat(*region, 0, absl::Seconds(2));
  EXPECT_EQ(status.pid(), 99);
  EXPECT_EQ(status.alive_age_seconds(), -1);
  EXPECT_EQ(status.step(), 0);
  EXPECT_EQ(status.phase(), v1::PHASE_STARTING);
  EXPECT_EQ(status.doing(), "");
}

TEST(HeartbeatTest, LongTextIsCutAndUnprintableBytesAreReplaced) {
  auto region = MakeRegion(1);
  HeartbeatWriter writer(region.get(), 0);
  writer.SetDoing(std::string(500, 'x'));
  EXPECT_EQ(ReadHeartbeat(*region, 0, {}).doing(), std::string(kDoingBytesMax, 'x'));
  writer.SetDoing("a\xc3\xbc\n~");
  EXPECT_EQ(ReadHeartbeat(*region, 0, {}).doing(), "a???~");
}

TEST(HeartbeatTest, TextIsNeverTornWhileItChanges) {
  auto region = MakeRegion(1);
  HeartbeatWriter writer(region.get(), 0);
  std::atomic<bool> stop = false;
  std::thread thread([&] {
    for (int i = 0; !stop.load(); ++i) {
      writer.SetDoing(std::string(1 + i % kDoingBytesMax, static_cast<char>('a' + i % 26)));
    }
  });
  for (int i = 0; i < 20000; ++i) {
    const std::string text = ReadHeartbeat(*region, 0, {}).doing();
    if (text.empty()) continue;
    ASSERT_EQ(text, std::string(text.size(), text[0]));
    ASSERT_EQ((text.size() - 1) % 26, static_cast<size_t>(text[0] - 'a') % 26);
  }
  stop.store(true);
  thread.join();
}

// A child writes one-letter texts without end and is killed at whatever instruction it is.
TEST(HeartbeatTest, ReaderSurvivesAWriterThatWasKilled) {
  for (int round = 0; round < 20; ++round) {
    auto region = MakeRegion(1);
    ASSERT_NO_FATAL_FAILURE(base::KillOnceReady([&](const std::function<void()>& ready) {
      HeartbeatWriter writer(region.get(), 0);
      writer.SetStep(3);
      for (uint32_t i = 0;; ++i) {
        writer.SetDoing(std::string(100, static_cast<char>('a' + i % 26)));
        if (i == 1000) ready();
      }
    }));
    const v1::RankStatus status = ReadHeartbeat(*region, 0, {});
    EXPECT_EQ(status.step(), 3);
    ASSERT_EQ(status.doing().size(), 100u);
    EXPECT_EQ(status.doing(), std::string(100, status.doing()[0]));
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
