#include "runtime/telemetry/span_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "runtime/base/testing/test_kill.h"

namespace megascale::telemetry {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::unique_ptr<base::SharedMemory> MakeRegion(int num_ranks) {
  return base::SharedMemory::Create("span_ring_test", SpanBytes(num_ranks)).value();
}

// All fields follow from (lane, number), so that a torn record shows.
Span SpanOf(int lane, int64_t number) {
  return {.begin_nanos = 10 * number + 1,
          .end_nanos = 10 * number + 5,
          .instruction = static_cast<uint64_t>(number) * 0x9e3779b97f4a7c15u,
          .step = 3 * number,
          .bytes = -number,
          .attempt = static_cast<int32_t>(number % 1000),
          .lane = static_cast<uint8_t>(lane),
          .code = static_cast<uint8_t>(number % 17),
          .exchange_nanos = 7 * number};
}

void Write(SpanWriter* writer, int lane, int64_t number) {
  const Span span = SpanOf(lane, number);
  writer->Begin(span);
  writer->End(lane, span.end_nanos, span.code, span.exchange_nanos);
}

int64_t NumberOf(const Span& span) { return -span.bytes; }

TEST(SpanRingTest, ReaderSeesEverySpanOnceAndInTheOrderOfItsLane) {
  auto region = MakeRegion(2);
  SpanWriter writer(region.get(), 1);
  SpanReader reader(region.get(), 1);
  std::vector<Span> spans;
  EXPECT_EQ(reader.Drain(&spans), 0);
  EXPECT_THAT(spans, IsEmpty());
  Write(&writer, 2, 1);
  Write(&writer, 0, 2);
  Write(&writer, 2, 3);
  EXPECT_EQ(reader.Drain(&spans), 0);
  EXPECT_THAT(spans, ElementsAre(SpanOf(0, 2), SpanOf(2, 1), SpanOf(2, 3)));
  EXPECT_EQ(reader.Drain(&spans), 0);
  EXPECT_EQ(spans.size(), 3u);
  std::vector<Span> other;
  SpanReader(region.get(), 0).Drain(&other);
  EXPECT_THAT(other, IsEmpty());
}

TEST(SpanRingTest, ASpanThatHasNotEndedIsOpenAndComesWhenItHas) {
  auto region = MakeRegion(1);
  SpanWriter writer(region.get(), 0);
  SpanReader reader(region.get(), 0);
  const Span span = SpanOf(5, 7);
  writer.Begin(span);
  std::vector<Span> spans;
  EXPECT_EQ(reader.Drain(&spans), 0);
  EXPECT_THAT(spans, IsEmpty());
  Span open = span;
  open.end_nanos = 0;
  open.code = 0;
  open.exchange_nanos = 0;
  EXPECT_THAT(reader.Open(), ElementsAre(open));
  writer.End(5, span.end_nanos, span.code, span.exchange_nanos);
  EXPECT_THAT(reader.Open(), IsEmpty());
  EXPECT_EQ(reader.Drain(&spans), 0);
  EXPECT_THAT(spans, ElementsAre(span));
}

TEST(SpanRingTest, WhatWasOverwrittenIsCounted) {
  auto region = MakeRegion(1);
  SpanWriter writer(region.get(), 0);
  SpanReader reader(region.get(), 0);
  constexpr int64_t kWritten = 3 * kSpansPerLane + 5;
  for (int64_t i = 0; i < kWritten; ++i) Write(&writer, 1, i);
  std::vector<Span> spans;
  EXPECT_EQ(reader.Drain(&spans), kWritten - kSpansPerLane);
  ASSERT_EQ(spans.size(), static_cast<size_t>(kSpansPerLane));
  EXPECT_EQ(spans.front(), SpanOf(1, kWritten - kSpansPerLane));
  EXPECT_EQ(spans.back(), SpanOf(1, kWritten - 1));
}

TEST(SpanRingTest, ANewWriterEmptiesTheRing) {
  auto region = MakeRegion(1);
  SpanReader reader(region.get(), 0);
  std::vector<Span> spans;
  {
    SpanWriter first(region.get(), 0);
    for (int i = 0; i < 5; ++i) Write(&first, 0, i);
    reader.Drain(&spans);
  }
  SpanWriter second(region.get(), 0);
  Write(&second, 0, 9);
  spans.clear();
  EXPECT_EQ(reader.Drain(&spans), 0);
  EXPECT_THAT(spans, ElementsAre(SpanOf(0, 9)));
}

// While all lanes are written, every span that a reader gets is whole and in order, and the spans
// it got and the spans it lost add up.
TEST(SpanRingTest, NoSpanIsTornLostOrDoubledBesideWritersOfAllLanes) {
  constexpr int64_t kSpans = 200000;
  auto region = MakeRegion(1);
  SpanWriter writer(region.get(), 0);
  SpanReader reader(region.get(), 0);
  std::atomic<int> running = 3;
  std::vector<std::thread> threads;
  for (int lane = 0; lane < 3; ++lane) {
    threads.emplace_back([&, lane] {
      for (int64_t i = 0; i < kSpans; ++i) Write(&writer, lane, i);
      --running;
    });
  }
  std::array<int64_t, kSpanLanes> last;
  last.fill(-1);
  int64_t num_read = 0;
  int64_t num_lost = 0;
  std::vector<Span> spans;
  for (bool more = true; more;) {
    more = running.load() > 0;
    spans.clear();
    num_lost += reader.Drain(&spans);
    num_read += static_cast<int64_t>(spans.size());
    for (const Span& span : spans) {
      ASSERT_EQ(span, SpanOf(span.lane, NumberOf(span)));
      ASSERT_GT(NumberOf(span), last[span.lane]);
      last[span.lane] = NumberOf(span);
    }
    for (const Span& span : reader.Open()) {
      ASSERT_EQ(span.instruction, SpanOf(span.lane, NumberOf(span)).instruction);
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_read + num_lost, 3 * kSpans);
}

// A child writes spans without end and is killed at whatever instruction it is: all that it ended
// is whole, at most one a lane is open, and the reader does not wait for it.
TEST(SpanRingTest, ReaderSurvivesAWriterThatWasKilled) {
  for (int round = 0; round < 20; ++round) {
    auto region = MakeRegion(1);
    ASSERT_NO_FATAL_FAILURE(base::KillOnceReady([&](const std::function<void()>& ready) {
      SpanWriter writer(region.get(), 0);
      for (int64_t i = 0;; ++i) {
        Write(&writer, 4, i);
        if (i == 5000) ready();
      }
    }));
    SpanReader reader(region.get(), 0);
    std::vector<Span> spans;
    EXPECT_GE(reader.Drain(&spans), 5001 - kSpansPerLane);
    ASSERT_GE(spans.size(), static_cast<size_t>(kSpansPerLane - 1));
    for (const Span& span : spans) ASSERT_EQ(span, SpanOf(4, NumberOf(span)));
    ASSERT_LE(reader.Open().size(), 1u);
  }
}

}  // namespace
}  // namespace megascale::telemetry
