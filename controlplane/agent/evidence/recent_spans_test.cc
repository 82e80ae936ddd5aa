#include "controlplane/agent/evidence/recent_spans.h"

#include <gtest/gtest.h>

#include "runtime/plan/instruction.h"

namespace megascale::agent {
namespace {

using plan::InstructionId;
using plan::OpKind;
using telemetry::SpanWriter;

constexpr int64_t kSecond = 1000000000;

void Write(SpanWriter* writer, InstructionId id, int64_t step, int64_t end_nanos) {
  writer->Begin({.instruction = id.packed(), .step = step, .lane = 0});
  writer->End(0, end_nanos, 0);
}

TEST(RecentSpansTest, SaysWhatRunsAndWhatWasCompletedLast) {
  const auto region =
      base::SharedMemory::Create("recent_spans_test", telemetry::SpanBytes(1)).value();
  SpanWriter writer(region.get(), 0);
  RecentSpans recent(region.get(), 0);
  recent.Drain();
  EXPECT_EQ(recent.Describe(absl::Seconds(100)), "");
  Write(&writer, InstructionId(OpKind::kForward, 0, 3), 11, 90 * kSecond);
  Write(&writer, InstructionId(OpKind::kBackward, 0, 3), 12, 95 * kSecond);
  writer.Begin({.begin_nanos = 96 * kSecond,
                .instruction = InstructionId(OpKind::kReceiveGradient, 0, 4).packed(),
                .step = 12,
                .lane = 5});
  recent.Drain();
  EXPECT_EQ(recent.Describe(absl::Seconds(100)),
            "in RG.c0.m4 of step 12 for 4.0 s; last instructions completed: "
            "B.c0.m3 of step 12 5.0 s ago, F.c0.m3 of step 11");
  EXPECT_EQ(recent.num_lost(), 0);
}

TEST(RecentSpansTest, KeepsOnlyTheNewestOfMany) {
  const auto region =
      base::SharedMemory::Create("recent_spans_test", telemetry::SpanBytes(1)).value();
  SpanWriter writer(region.get(), 0);
  RecentSpans recent(region.get(), 0);
  for (int i = 0; i < 5000; ++i) {
    Write(&writer, InstructionId(OpKind::kForward, 0, i), 1, i);
    if (i % 700 == 0) recent.Drain();
  }
  recent.Drain();
  EXPECT_EQ(recent.Describe(absl::ZeroDuration()),
            "last instructions completed: F.c0.m4999 of step 1 0.0 s ago, F.c0.m4998, F.c0.m4997, "
            "F.c0.m4996, F.c0.m4995, F.c0.m4994, F.c0.m4993, F.c0.m4992");
  EXPECT_EQ(static_cast<int64_t>(recent.Since(0).size()) + recent.num_lost(), 5000);
}

TEST(RecentSpansTest, KeepsAHistoryForTracesUpToItsBound) {
  const auto region =
      base::SharedMemory::Create("recent_spans_test", telemetry::SpanBytes(1)).value();
  SpanWriter writer(region.get(), 0);
  RecentSpans recent(region.get(), 0);
  const auto size = static_cast<int64_t>(RecentSpans::kHistorySpans);
  for (int64_t i = 1; i <= size + 500; ++i) {
    Write(&writer, InstructionId(OpKind::kForward, 0, static_cast<int>(i)), i, i);
    if (i % 1000 == 0) recent.Drain();
  }
  recent.Drain();
  std::vector<telemetry::Span> spans = recent.Since(0);
  ASSERT_EQ(spans.size(), RecentSpans::kHistorySpans);
  EXPECT_EQ(spans.front().step, 501);
  EXPECT_EQ(spans.back().step, size + 500);
  EXPECT_EQ(recent.num_lost(), 0);

  writer.Begin({.begin_nanos = 7,
                .instruction = InstructionId(OpKind::kBackward, 0, 1).packed(),
                .step = size + 501,
                .lane = 2});
  recent.Drain();
  spans = recent.Since(size + 499);
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0].step, size + 499);
  EXPECT_EQ(spans[2].lane, 2);
  EXPECT_EQ(spans[2].end_nanos, 0);  // it runs
  EXPECT_TRUE(recent.Since(size + 502).empty());
}

// There are far more exchanges than instructions, and the instructions of whole steps must be kept.
TEST(RecentSpansTest, ExchangesWithinPassesAreKeptBesideInstructionsAndNotToldOfAsCompleted) {
  const auto region =
      base::SharedMemory::Create("recent_spans_test", telemetry::SpanBytes(1)).value();
  SpanWriter writer(region.get(), 0);
  RecentSpans recent(region.get(), 0);
  Write(&writer, InstructionId(OpKind::kForward, 0, 3), 1, 50 * kSecond);
  constexpr int kExchanges = RecentSpans::kHistorySpans + 10;
  for (int i = 1; i <= kExchanges; ++i) {
    writer.Begin({.instruction = InstructionId(OpKind::kForward, 0, 3).WithPiece(i).packed(),
                  .step = 1,
                  .lane = 8});
    writer.End(8, i, 0);
    if (i % 1000 == 0) recent.Drain();
  }
  recent.Drain();
  EXPECT_EQ(recent.Describe(absl::Seconds(51)),
            "last instructions completed: F.c0.m3 of step 1 1.0 s ago");
  const std::vector<telemetry::Span> spans = recent.Since(1);
  ASSERT_EQ(spans.size(), 1 + RecentSpans::kHistorySpans);
  EXPECT_EQ(spans.front().lane, 0);
  EXPECT_EQ(spans.back().instruction,
            InstructionId(OpKind::kForward, 0, 3).WithPiece(kExchanges).packed());
  EXPECT_EQ(recent.num_lost(), 0);
}

TEST(RecentSpansTest, AStretchOfTimeIsComputingOrWaiting) {
  const auto region =
      base::SharedMemory::Create("recent_spans_test", telemetry::SpanBytes(1)).value();
  SpanWriter writer(region.get(), 0);
  RecentSpans recent(region.get(), 0);
  const auto write = [&](InstructionId id, uint8_t lane, int64_t begin, int64_t end) {
    writer.Begin({.begin_nanos = begin, .instruction = id.packed(), .step = 1, .lane = lane});
    if (end > 0) writer.End(lane, end, 0);
  };
  write(InstructionId(OpKind::kForward, 0, 0), 0, 0, 50);           // before
  write(InstructionId(OpKind::kForward, 0, 1), 0, 90, 130);         // 30 within
  write(InstructionId(OpKind::kReduceNorm), 1, 120, 160);           // 10 of it while computing
  write(InstructionId(OpKind::kReceiveGradient, 0, 1), 2, 180, 0);  // runs: 20
  write(InstructionId(OpKind::kEvaluate, 0, 0), 3, 160, 175);       // of an evaluation
  write(InstructionId(OpKind::kGatherLosses), 3, 175, 180);
  recent.Drain();
  const RecentSpans::Shares shares = recent.SharesOf(100, 200);
  EXPECT_DOUBLE_EQ(shares.compute, 0.3);
  EXPECT_DOUBLE_EQ(shares.wait, 0.5);
  EXPECT_EQ(shares.num_forwards, 1);
  EXPECT_DOUBLE_EQ(recent.SharesOf(1000, 1100).compute, 0);
  EXPECT_EQ(recent.SharesOf(40, 120).num_forwards, 1) << "the first one; the second ends later";
}

}  // namespace
}  // namespace megascale::agent
