#include "runtime/data/batches/batch_ring.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <memory>
#include <thread>

#include "runtime/base/testing/test_kill.h"

namespace megascale::data {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr absl::Duration kNow = absl::ZeroDuration();

BatchRingShape Shape() {
  BatchRingShape shape;
  shape.num_slots = 2;
  shape.data_parallel_indices = {1, 3};
  shape.num_microbatches = 2;
  shape.micro_batch_size = 3;
  shape.seq_length = 5;
  shape.num_readers = 2;
  return shape;
}

std::unique_ptr<base::SharedMemory> MakeRing(int64_t first_step) {
  auto region = base::SharedMemory::Create("batch_ring_test", BatchRingBytes(Shape())).value();
  FormatBatchRing(*region, Shape(), first_step);
  return region;
}

int32_t Token(int64_t step, int data_parallel_index, int microbatch, int index, int position) {
  return static_cast<int32_t>(
      (((step * 10 + data_parallel_index) * 10 + microbatch) * 10 + index) * 10 + position);
}

// Calls `visit` with every token's place and expected value.
template <typename View, typename Visit>
void ForEachToken(int64_t step, const View& view, Visit visit) {
  for (const int dp : view.shape().data_parallel_indices) {
    for (int microbatch = 0; microbatch < view.shape().num_microbatches; ++microbatch) {
      for (int index = 0; index < view.shape().micro_batch_size; ++index) {
        auto sample = view.sample(dp, microbatch, index);
        ASSERT_EQ(sample.size(), 6u);
        for (int i = 0; i < 6; ++i) {
          visit(sample[static_cast<size_t>(i)], Token(step, dp, microbatch, index, i));
        }
      }
    }
  }
}

absl::Status Fill(int64_t step, const MutableBatchView& view) {
  ForEachToken(step, view, [](int32_t& token, int32_t value) { token = value; });
  return absl::OkStatus();
}

void ExpectStep(int64_t step, const BatchView& view) {
  ForEachToken(step, view, [](int32_t token, int32_t value) { ASSERT_EQ(token, value); });
}

TEST(BatchRingTest, AMemoryThatIsNoRingIsRefused) {
  auto region = base::SharedMemory::Create("batch_ring_test", 4096).value();
  EXPECT_EQ(BatchRingReader::Create(region.get(), 0).status().code(),
            absl::StatusCode::kInvalidArgument);
  auto ring = MakeRing(0);
  EXPECT_EQ(BatchRingReader::Create(ring.get(), 2).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(BatchRingReader::Create(ring.get(), 1).ok());
}

TEST(BatchRingTest, EveryReaderSeesEveryStepInOrder) {
  auto region = MakeRing(100);
  constexpr int64_t kSteps = 300;
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 2; ++reader) {
    readers.emplace_back([&region, reader] {
      auto ring = BatchRingReader::Create(region.get(), reader).value();
      for (int64_t step = 101; step <= 100 + kSteps; ++step) {
        const auto view = ring.Wait(step, kPatience);
        ASSERT_TRUE(view.ok()) << view.status();
        ExpectStep(step, *view);
        ring.Release(step);
      }
    });
  }
  auto writer = BatchRingWriter::Create(region.get()).value();
  while (writer.next_step() <= 100 + kSteps) ASSERT_TRUE(writer.Publish(Fill, kPatience).ok());
  for (std::thread& reader : readers) reader.join();
}

TEST(BatchRingTest, WaitsEndAtTheirDeadlineAndChangeNothing) {
  auto region = MakeRing(0);
  auto writer = BatchRingWriter::Create(region.get()).value();
  auto first = BatchRingReader::Create(region.get(), 0).value();
  auto second = BatchRingReader::Create(region.get(), 1).value();
  EXPECT_EQ(first.Wait(1, kNow).status().code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(writer.Publish(Fill, kNow).ok());
  ASSERT_TRUE(writer.Publish(Fill, kNow).ok());
  first.Release(2);
  bool was_called = false;
  const auto never = [&was_called](int64_t, const MutableBatchView&) {
    was_called = true;
    return absl::OkStatus();
  };
  const absl::Status full = writer.Publish(never, absl::Milliseconds(1));
  EXPECT_EQ(full.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(full.message().find("reader 1"), absl::string_view::npos) << full;
  EXPECT_FALSE(was_called);
  EXPECT_EQ(writer.next_step(), 3);
  ExpectStep(1, second.Wait(1, kNow).value());
  second.Release(1);
  EXPECT_TRUE(writer.Publish(Fill, kNow).ok());
}

TEST(BatchRingTest, AFailedFillPublishesNothing) {
  auto region = MakeRing(0);
  auto writer = BatchRingWriter::Create(region.get()).value();
  const auto fail = [](int64_t, const MutableBatchView&) { return absl::DataLossError("disk"); };
  EXPECT_EQ(writer.Publish(fail, kNow).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(writer.next_step(), 1);
}

TEST(BatchRingTest, AReleasedStepCannotBeReadAgain) {
  auto region = MakeRing(0);
  auto writer = BatchRingWriter::Create(region.get()).value();
  auto reader = BatchRingReader::Create(region.get(), 0).value();
  ASSERT_TRUE(writer.Publish(Fill, kNow).ok());
  reader.Release(1);
  reader.Release(1);
  EXPECT_EQ(reader.Wait(1, kNow).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(BatchRingTest, AWriterKilledWhileItFillsLeavesNothingAndItsSuccessorGoesOn) {
  auto region = MakeRing(0);
  base::RunAndKill([&region](const std::function<void()>& die_here) {
    auto writer = BatchRingWriter::Create(region.get()).value();
    (void)writer.Publish(Fill, kNow);
    (void)writer.Publish(
        [&die_here](int64_t, const MutableBatchView& view) {
          view.sample(1, 0, 0)[0] = -1;
          die_here();
          return absl::OkStatus();
        },
        kNow);
  });
  auto reader = BatchRingReader::Create(region.get(), 0).value();
  auto other = BatchRingReader::Create(region.get(), 1).value();
  ExpectStep(1, reader.Wait(1, kNow).value());
  EXPECT_EQ(reader.Wait(2, kNow).status().code(), absl::StatusCode::kDeadlineExceeded);

  auto successor = BatchRingWriter::Create(region.get()).value();
  EXPECT_EQ(successor.next_step(), 2);
  ASSERT_TRUE(successor.Publish(Fill, kNow).ok());
  ExpectStep(2, reader.Wait(2, kNow).value());
  reader.Release(2);
  other.Release(2);
  ASSERT_TRUE(successor.Publish(Fill, kNow).ok());
  ExpectStep(3, other.Wait(3, kNow).value());
}

TEST(BatchRingTest, AWriterKilledWhileItWaitsHarmsNobody) {
  auto region = MakeRing(0);
  base::RunAndKill([&region](const std::function<void()>& die_here) {
    auto writer = BatchRingWriter::Create(region.get()).value();
    (void)writer.Publish(Fill, kNow);
    (void)writer.Publish(Fill, kNow);
    std::thread waits([&writer] { (void)writer.Publish(Fill, kPatience); });
    die_here();
  });
  auto successor = BatchRingWriter::Create(region.get()).value();
  EXPECT_EQ(successor.next_step(), 3);
  BatchRingReader::Create(region.get(), 0).value().Release(1);
  EXPECT_EQ(successor.Publish(Fill, kNow).code(), absl::StatusCode::kDeadlineExceeded);
  BatchRingReader::Create(region.get(), 1).value().Release(1);
  EXPECT_TRUE(successor.Publish(Fill, kNow).ok());
}

TEST(BatchRingTest, AKilledReaderHoldsItsStepUntilItsSuccessorReadsOn) {
  auto region = MakeRing(0);
  auto writer = BatchRingWriter::Create(region.get()).value();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(writer.Publish(Fill, kNow).ok());
  auto survivor = BatchRingReader::Create(region.get(), 0).value();
  survivor.Release(2);
  base::RunAndKill([&region](const std::function<void()>& die_here) {
    auto reader = BatchRingReader::Create(region.get(), 1).value();
    reader.Release(1);
    (void)reader.Wait(2, kNow);
    die_here();
  });
  ASSERT_TRUE(writer.Publish(Fill, kNow).ok());
  EXPECT_EQ(writer.Publish(Fill, kNow).code(), absl::StatusCode::kDeadlineExceeded);
  ExpectStep(3, survivor.Wait(3, kNow).value());
  auto successor = BatchRingReader::Create(region.get(), 1).value();
  ExpectStep(2, successor.Wait(2, kNow).value());
  successor.Release(2);
  EXPECT_TRUE(writer.Publish(Fill, kNow).ok());
}

// Kills a writing process at arbitrary instructions, again and again, while a reader checks
// everything.
TEST(BatchRingTest, AReaderNeverSeesATornStepHoweverOftenTheWriterIsKilled) {
  auto region = MakeRing(0);
  auto reader = BatchRingReader::Create(region.get(), 0).value();
  auto other = BatchRingReader::Create(region.get(), 1).value();
  int64_t step = 0;
  for (int round = 0; round < 30; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto writer = BatchRingWriter::Create(region.get()).value();
      for (;;) (void)writer.Publish(Fill, kPatience);
    }
    for (int i = 0; i < 50 + round; ++i) {
      ++step;
      const auto view = reader.Wait(step, kPatience);
      ASSERT_TRUE(view.ok()) << view.status();
      ExpectStep(step, *view);
      reader.Release(step);
      other.Release(step);
    }
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  }
}

}  // namespace
}  // namespace megascale::data
