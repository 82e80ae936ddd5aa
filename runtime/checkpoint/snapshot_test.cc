#include "runtime/checkpoint/snapshot.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "runtime/base/testing/test_kill.h"
#include "runtime/checkpoint/testing/test_checkpoint.h"

namespace megascale::checkpoint {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr absl::Duration kNow = absl::ZeroDuration();
constexpr int64_t kBytes = 10'000;

std::string Contents(int64_t step) {
  return std::string(kBytes, static_cast<char>('a' + step % 26));
}

class SnapshotTest : public ::testing::Test {
 protected:
  SnapshotTest() : region_(MakeSnapshotRegion(kBytes, 3)) {}

  SnapshotWriter Writer(int64_t attempt, int64_t restored_step) {
    return SnapshotWriter::Open(region_.get(), attempt, restored_step).value();
  }
  SnapshotReader Reader() { return SnapshotReader::Open(region_.get()).value(); }
  void Seal(SnapshotWriter& writer, int64_t step) {
    SealPayload(writer, *region_, Contents(step), step);
  }
  void Persist(int64_t step) {
    for (const SealedSnapshot& snapshot : Reader().List()) {
      if (snapshot.step == step) Reader().MarkPersisted(snapshot);
    }
  }
  std::vector<int64_t> Steps() {
    std::vector<int64_t> steps;
    for (const SealedSnapshot& snapshot : ListSealed(*region_)) steps.push_back(snapshot.step);
    return steps;
  }

  std::unique_ptr<base::SharedMemory> region_;
};

TEST_F(SnapshotTest, AMemoryThatIsNoneIsRefused) {
  auto region = base::SharedMemory::Create("snapshot_test", 10'000).value();
  EXPECT_EQ(SnapshotReader::Open(region.get()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ListSealed(*region).empty());
}

TEST_F(SnapshotTest, ATableIsKeptBesideTheSnapshotsUntilAnotherReplacesIt) {
  constexpr size_t kTableBytes = 9000;
  auto region = base::SharedMemory::Create("table", SnapshotBytes(kBytes, kTableBytes)).value();
  FormatSnapshots(*region, 3, kTableBytes);
  EXPECT_EQ(KeptTable(*region).status().code(), absl::StatusCode::kNotFound);
  const std::string table(kTableBytes, 't');
  ASSERT_EQ(KeepTable(*region, table), absl::OkStatus());
  auto writer = SnapshotWriter::Open(region.get(), 1, 0).value();
  for (int64_t step = 1; step <= 3; ++step) {
    const absl::Span<std::byte> buffer = writer.Acquire(kNow).value();
    EXPECT_GE(buffer.size(), static_cast<size_t>(kBytes));
    std::memset(buffer.data(), 's', buffer.size());
    ASSERT_TRUE(writer.Seal(step, kBytes).ok());
    const auto reader = SnapshotReader::Open(region.get()).value();
    for (const SealedSnapshot& snapshot : reader.List()) reader.MarkPersisted(snapshot);
    EXPECT_EQ(KeptTable(*region).value(), table);
  }
  ASSERT_EQ(KeepTable(*region, "another"), absl::OkStatus());
  EXPECT_EQ(KeptTable(*region).value(), "another");
  const auto too_large = KeepTable(*region, std::string(kTableBytes + 4096, 't'));
  EXPECT_EQ(too_large.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(KeptTable(*region).value(), "another");
  EXPECT_EQ(SnapshotReader::Open(region.get())->Read(3).value(), std::string(kBytes, 's'));
}

TEST_F(SnapshotTest, AMemoryWithoutRoomKeepsNoTable) {
  EXPECT_EQ(KeepTable(*region_, "table").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(KeptTable(*region_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SnapshotTest, ADamagedTableIsDataLoss) {
  auto region = base::SharedMemory::Create("table", SnapshotBytes(kBytes, 100)).value();
  FormatSnapshots(*region, 0, 100);
  ASSERT_EQ(KeepTable(*region, "table"), absl::OkStatus());
  region->data()[SnapshotBytes(kBytes)] ^= std::byte{1};
  EXPECT_EQ(KeptTable(*region).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(SnapshotTest, WhatIsSealedIsListedAndRead) {
  auto writer = Writer(2, 0);
  EXPECT_TRUE(Steps().empty());
  Seal(writer, 100);
  const SealedSnapshot snapshot = ListSealed(*region_).at(0);
  EXPECT_EQ(snapshot.rank, 3);
  EXPECT_EQ(snapshot.attempt, 2);
  EXPECT_EQ(snapshot.step, 100);
  EXPECT_EQ(snapshot.size_bytes, kBytes);
  EXPECT_FALSE(snapshot.persisted);
  EXPECT_EQ(Reader().Read(100).value(), Contents(100));
  EXPECT_EQ(Reader().Read(99).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Reader().Find(2, 100).has_value());
  EXPECT_FALSE(Reader().Find(1, 100).has_value());
}

TEST_F(SnapshotTest, BothBuffersAreKeptUntilTheOlderIsPersisted) {
  auto writer = Writer(1, 0);
  Seal(writer, 100);
  Seal(writer, 200);
  EXPECT_EQ(Steps(), (std::vector<int64_t>{200, 100}));
  EXPECT_EQ(writer.Acquire(absl::Milliseconds(1)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  Persist(100);
  Seal(writer, 300);
  EXPECT_EQ(Steps(), (std::vector<int64_t>{300, 200}));
  Persist(200);
  EXPECT_TRUE(ListSealed(*region_)[1].persisted);
}

TEST_F(SnapshotTest, AMarkThatComesTooLateFreesNothing) {
  auto writer = Writer(1, 0);
  Seal(writer, 100);
  const SealedSnapshot first = ListSealed(*region_)[0];
  Reader().MarkPersisted(first);
  Seal(writer, 200);
  Seal(writer, 300);
  EXPECT_FALSE(Reader().IsCurrent(first));
  Reader().MarkPersisted(first);
  EXPECT_FALSE(ListSealed(*region_)[0].persisted);
  Persist(300);
  Reader().MarkPersisted(first);
  EXPECT_TRUE(ListSealed(*region_)[0].persisted);
  EXPECT_EQ(Reader().Read(first).status().code(), absl::StatusCode::kAborted);
}

TEST_F(SnapshotTest, AWaitingWriterWakesWhenTheOlderIsPersisted) {
  auto writer = Writer(1, 0);
  Seal(writer, 100);
  Seal(writer, 200);
  std::thread thread([&] { EXPECT_TRUE(writer.Acquire(kPatience).ok()); });
  Persist(100);
  thread.join();
  EXPECT_EQ(Steps(), (std::vector<int64_t>{200}));
}

TEST_F(SnapshotTest, StorageThatFailsIsNotWaitedForAndTheNewestStays) {
  auto writer = Writer(1, 0);
  Seal(writer, 100);
  Seal(writer, 200);
  EXPECT_EQ(writer.Acquire(kNow).status().code(), absl::StatusCode::kDeadlineExceeded);
  Reader().SetStorageFails(true);
  Seal(writer, 300);
  EXPECT_EQ(Steps(), (std::vector<int64_t>{300, 200}));
  EXPECT_EQ(Reader().Read(300).value(), Contents(300));
  Reader().SetStorageFails(false);
  EXPECT_EQ(writer.Acquire(kNow).status().code(), absl::StatusCode::kDeadlineExceeded);
  Reader().SetStorageFails(true);
  auto next = Writer(2, 300);
  Seal(next, 400);
  Seal(next, 500);
  EXPECT_EQ(next.Acquire(kNow).status().code(), absl::StatusCode::kDeadlineExceeded)
      << "a new attempt waits until its own host says that storage fails";
}

// The host may never persist the older one, and the newest is never taken.
TEST_F(SnapshotTest, AnOlderSnapshotIsNotWaitedForOnceTheNewerOneIsPersisted) {
  auto writer = Writer(1, 0);
  Seal(writer, 100);
  Seal(writer, 200);
  Persist(200);
  Seal(writer, 300);
  EXPECT_EQ(Steps(), (std::vector<int64_t>{300, 200}));
}

TEST_F(SnapshotTest, SealNeedsAnAcquiredBufferThatIsLargeEnough) {
  auto writer = Writer(1, 0);
  EXPECT_EQ(writer.Seal(1, 10).status().code(), absl::StatusCode::kFailedPrecondition);
  const size_t capacity = writer.Acquire(kNow).value().size();
  EXPECT_GE(capacity, static_cast<size_t>(kBytes));
  EXPECT_EQ(writer.Seal(1, static_cast<int64_t>(capacity) + 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(writer.Seal(1, 10).ok());
}

TEST_F(SnapshotTest, AnAttemptDropsWhatWasRolledBackAndKeepsWhatItWasRestoredFrom) {
  auto first = Writer(1, 0);
  Seal(first, 100);
  Seal(first, 200);
  auto second = Writer(2, 100);
  EXPECT_EQ(Steps(), (std::vector<int64_t>{100}));
  Seal(second, 200);
  EXPECT_EQ(Steps(), (std::vector<int64_t>{200, 100}));
  EXPECT_EQ(ListSealed(*region_)[0].attempt, 2);
  // No process persists the earlier attempt's snapshot any more, so it is taken without waiting.
  Seal(second, 300);
  EXPECT_EQ(Steps(), (std::vector<int64_t>{300, 200}));
  Writer(3, 0);
  EXPECT_TRUE(Steps().empty());
}

TEST_F(SnapshotTest, DamagedMemoryIsDataLoss) {
  auto writer = Writer(1, 0);
  Seal(writer, 100);
  const char* payload = Reader().Read(100).value().data();
  const_cast<char*>(payload)[kBytes / 2] ^= 1;
  EXPECT_EQ(Reader().Read(100).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(SnapshotTest, AWriterKilledWhileItCopiesLeavesTheOtherBuffer) {
  base::RunAndKill([this](const std::function<void()>& die_here) {
    auto writer = Writer(1, 0);
    Seal(writer, 100);
    Seal(writer, 200);
    Persist(100);
    std::memset(writer.Acquire(kNow).value().data(), 'x', kBytes / 2);
    die_here();
  });
  EXPECT_EQ(Steps(), (std::vector<int64_t>{200}));
  EXPECT_EQ(Reader().Read(200).value(), Contents(200));
  auto next = Writer(2, 200);
  Seal(next, 300);
  EXPECT_EQ(Steps(), (std::vector<int64_t>{300, 200}));
  EXPECT_EQ(Reader().Read(300).value(), Contents(300));
}

// Kills a writing process at arbitrary instructions, again and again: listed snapshots are whole,
// and after the first seal there is always one.
TEST_F(SnapshotTest, AKillAtAnyInstructionLeavesOnlyWholeSnapshots) {
  int64_t restored = 0;
  for (int64_t attempt = 1; attempt <= 40; ++attempt) {
    ASSERT_NO_FATAL_FAILURE(base::KillOnceReady([&](const std::function<void()>& ready) {
      auto writer = Writer(attempt, restored);
      for (int64_t step = restored + 1;; ++step) {
        Seal(writer, step);
        for (const SealedSnapshot& snapshot : Reader().List()) Reader().MarkPersisted(snapshot);
        if (step == restored + attempt) ready();
      }
    }));
    const auto sealed = Reader().List();
    ASSERT_FALSE(sealed.empty());
    for (const SealedSnapshot& snapshot : sealed) {
      const auto payload = Reader().Read(snapshot);
      ASSERT_TRUE(payload.ok()) << payload.status();
      ASSERT_EQ(*payload, Contents(snapshot.step));
    }
    ASSERT_GE(sealed[0].step, restored + attempt);
    restored = sealed[0].step;
  }
}

TEST_F(SnapshotTest, AReaderBesideAWriterSeesWholeSnapshotsOrNone) {
  std::atomic<bool> stop = false;
  std::thread thread([&] {
    auto writer = Writer(1, 0);
    for (int64_t step = 1; !stop.load(); ++step) {
      Seal(writer, step);
      for (const SealedSnapshot& snapshot : Reader().List()) Reader().MarkPersisted(snapshot);
    }
  });
  int num_read = 0;
  while (num_read < 2000) {
    for (const SealedSnapshot& snapshot : Reader().List()) {
      const auto payload = Reader().Read(snapshot);
      ++num_read;
      if (payload.ok()) continue;
      EXPECT_EQ(payload.status().code(), absl::StatusCode::kAborted) << payload.status();
    }
  }
  stop.store(true);
  thread.join();
}

}  // namespace
}  // namespace megascale::checkpoint
