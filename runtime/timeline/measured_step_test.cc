#include "runtime/timeline/measured_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/plan/build/step_plan.h"
#include "runtime/plan/plan_options.h"
#include "runtime/simulate/step_time.h"
#include "runtime/timeline/step_breakdown.h"

namespace megascale::timeline {
namespace {

using plan::InstructionId;
using plan::OpKind;
using plan::RankPlan;
using telemetry::Span;

constexpr int64_t kStart = 5'000'000;  // reading of the clock when step 1 begins
constexpr int64_t kStepNanos = 100'000;

class MeasuredStepTest : public ::testing::Test {
 protected:
  MeasuredStepTest() {
    plan::PlanOptions options;
    options.mesh = plan::Mesh::Create({.data = 2, .pipeline = 2}).value();
    options.num_microbatches = 3;
    options.chunks.assign(2, {.forward_flops = 100,
                              .backward_flops = 200,
                              .output_bytes = 10,
                              .gradient_bytes = 30,
                              .parameter_bytes = 20});
    for (int rank = 0; rank < 4; ++rank) {
      plans_.push_back(plan::BuildTrainPlan(options, rank).value());
    }
    planned_ = simulate::TimeStep(plans_, [](const plan::RankPlan&, const plan::Instruction& i) {
                 return i.flops + i.bytes;
               }).value();
    ranks_.resize(4);
  }

  // Adds the spans that ranks would have recorded for the planned step.
  void RunStep(int64_t step) {
    for (size_t rank = 0; rank < 4; ++rank) {
      for (size_t i = 0; i < plans_[rank].instructions.size(); ++i) {
        const SpanTime& time = planned_.ranks[rank][i];
        const int64_t at = kStart + (step - 1) * kStepNanos;
        ranks_[rank].spans.push_back({.begin_nanos = at + time.ready,
                                      .end_nanos = at + time.end,
                                      .instruction = plans_[rank].instructions[i].id.packed(),
                                      .step = step});
      }
      ranks_[rank].seen_nanos = kStart + step * kStepNanos;
    }
  }
  Span& SpanOf(size_t rank, InstructionId id) {
    auto& spans = ranks_[rank].spans;
    return *std::find_if(spans.begin(), spans.end(),
                         [&](const Span& span) { return span.instruction == id.packed(); });
  }
  const SpanTime& TimeOf(const TimedStep& step, size_t rank, InstructionId id) const {
    const auto& instructions = plans_[rank].instructions;
    const auto found = std::find_if(instructions.begin(), instructions.end(),
                                    [&](const auto& one) { return one.id == id; });
    return step.time.ranks[rank][static_cast<size_t>(found - instructions.begin())];
  }
  std::vector<int64_t> Numbers(int num_steps) const {
    std::vector<int64_t> numbers;
    for (const TimedStep& step : MeasureSteps(plans_, ranks_, num_steps)) {
      numbers.push_back(step.whole ? step.step : -step.step);
    }
    return numbers;
  }

  std::vector<RankPlan> plans_;
  StepTime planned_;
  std::vector<RankSpans> ranks_;
};

TEST_F(MeasuredStepTest, WaitsThatSpansDoNotTellAreFoundFromThePeers) {
  RunStep(1);
  const std::vector<TimedStep> steps = MeasureSteps(plans_, ranks_, 1);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_TRUE(steps[0].whole);
  EXPECT_EQ(steps[0].time.end, planned_.end);
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(steps[0].time.ranks[rank], planned_.ranks[rank]) << rank;
    EXPECT_EQ(BreakDown(plans_[rank], steps[0].time.ranks[rank]),
              BreakDown(plans_[rank], planned_.ranks[rank]));
  }
}

TEST_F(MeasuredStepTest, TakesTheNewestStepsThatAllRanksHaveEndedAndWhatIsKnownOfTheNextTwo) {
  for (int64_t step = 1; step <= 6; ++step) RunStep(step);
  EXPECT_EQ(Numbers(2), (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(Numbers(100), (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  // A rank that was read before the others has fewer spans.
  std::erase_if(ranks_[2].spans, [](const Span& span) { return span.step > 4; });
  EXPECT_EQ(Numbers(2), (std::vector<int64_t>{3, 4, -5, -6}));
  // A step with a lost span.
  ranks_[1].spans.erase(ranks_[1].spans.begin() +
                        static_cast<ptrdiff_t>(3 * plans_[1].instructions.size() + 2));
  EXPECT_EQ(Numbers(2), (std::vector<int64_t>{2, 3, -4, -5}));
}

TEST_F(MeasuredStepTest, TimesOfAllStepsCountFromTheFirst) {
  RunStep(1);
  RunStep(2);
  const std::vector<TimedStep> steps = MeasureSteps(plans_, ranks_, 2);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(TimeOf(steps[0], 0, InstructionId(OpKind::kGatherParameters, 0)).ready, 0);
  EXPECT_EQ(TimeOf(steps[1], 0, InstructionId(OpKind::kGatherParameters, 0)).ready, kStepNanos);
}

TEST_F(MeasuredStepTest, AStepThatStandsStillShowsWhereEachRankIs) {
  RunStep(1);
  const InstructionId receive(OpKind::kReceiveActivation, 1, 2);
  for (size_t rank : {2, 3}) {  // ranks of stage 1
    Span& open = SpanOf(rank, receive);
    open.end_nanos = 0;
    const int64_t since = open.begin_nanos;
    std::erase_if(ranks_[rank].spans, [&](const Span& span) { return span.begin_nanos > since; });
  }
  for (size_t rank : {0, 1}) {
    const int64_t before = SpanOf(rank, InstructionId(OpKind::kSendActivation, 0, 2)).begin_nanos;
    std::erase_if(ranks_[rank].spans, [&](const Span& span) { return span.begin_nanos >= before; });
  }
  const std::vector<TimedStep> steps = MeasureSteps(plans_, ranks_, 3);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_FALSE(steps[0].whole);
  const SpanTime& open = TimeOf(steps[0], 2, receive);
  EXPECT_EQ(open.state, SpanState::kRuns);
  EXPECT_EQ(open.begin, open.end);  // it still waits
  EXPECT_EQ(open.end, kStepNanos);  // when the spans were read
  EXPECT_EQ(TimeOf(steps[0], 0, InstructionId(OpKind::kBackward, 0, 2)).state,
            SpanState::kNotBegun);
}

TEST_F(MeasuredStepTest, ASendThatEndedBeforeItsReceiverWasReadyDidNotWait) {
  RunStep(1);
  const InstructionId send(OpKind::kSendActivation, 0, 0);
  const InstructionId receive(OpKind::kReceiveActivation, 1, 0);
  SpanOf(0, send).begin_nanos = kStart + 10;
  SpanOf(0, send).end_nanos = kStart + 20;
  constexpr size_t kPeer = 2;
  SpanOf(kPeer, receive).begin_nanos = kStart + 50;
  SpanOf(kPeer, receive).end_nanos = kStart + 60;
  const TimedStep step = MeasureSteps(plans_, ranks_, 1)[0];
  const int64_t origin = TimeOf(step, 0, send).ready - 10;
  EXPECT_EQ(TimeOf(step, 0, send), (SpanTime{origin + 10, origin + 10, origin + 20}));
  EXPECT_EQ(TimeOf(step, kPeer, receive), (SpanTime{origin + 50, origin + 50, origin + 60}));
}

TEST_F(MeasuredStepTest, ARankOfWhichNothingIsKnownHoldsNobodyUp) {
  RunStep(1);
  RunStep(2);
  ranks_[3] = RankSpans{.known = false, .spans = {}};
  const std::vector<TimedStep> steps = MeasureSteps(plans_, ranks_, 1);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].step, 2);
  EXPECT_TRUE(steps[0].whole);
  EXPECT_EQ(steps[0].time.ranks[3].front().state, SpanState::kNotBegun);
}

// Two tensor ranks of one stage with one pass of interest, which rank 1 begins 20 later.
TEST(MeasuredExchangesTest, APassTellsOfItsWaitsButNotForTheLastToBegin) {
  const InstructionId forward(OpKind::kForward, 0, 0);
  plan::PlanOptions options;
  options.mesh = plan::Mesh::Create({.tensor = 2}).value();
  std::vector<RankPlan> plans;
  std::vector<RankSpans> ranks(2);
  for (int rank = 0; rank < 2; ++rank) {
    plans.push_back(plan::BuildTrainPlan(options, rank).value());
    for (const plan::Instruction& instruction : plans.back().instructions) {
      const bool interesting = instruction.id == forward;
      ranks[static_cast<size_t>(rank)].spans.push_back(
          {.begin_nanos = kStart + (interesting ? 100 + 20 * rank : 0),
           .end_nanos = kStart + (interesting ? 200 : 0),
           .instruction = instruction.id.packed(),
           .step = 1,
           .exchange_nanos = 50});  // only a pass has exchanges
    }
  }
  ranks[0].spans.push_back({.begin_nanos = kStart + 101,
                            .end_nanos = kStart + 140,
                            .instruction = forward.WithPiece(1).packed(),
                            .step = 1,
                            .bytes = 12});
  for (const InstructionId nowhere : {InstructionId(OpKind::kForward, 0, 9).WithPiece(1),
                                      InstructionId(OpKind::kReduceNorm).WithPiece(1)}) {
    ranks[0].spans.push_back(ranks[0].spans.back());
    ranks[0].spans.back().instruction = nowhere.packed();
  }
  const std::vector<TimedStep> steps = MeasureSteps(plans, ranks, 1);
  ASSERT_EQ(steps.size(), 1u);
  const auto of_pass = [&](size_t rank) {
    const auto& instructions = plans[rank].instructions;
    const auto found = std::find_if(instructions.begin(), instructions.end(),
                                    [&](const auto& one) { return one.id == forward; });
    return steps[0].time.ranks[rank][static_cast<size_t>(found - instructions.begin())];
  };
  EXPECT_EQ(of_pass(0), (SpanTime{.ready = 100, .begin = 120, .end = 200, .exchange = 30}));
  EXPECT_EQ(of_pass(1), (SpanTime{.ready = 120, .begin = 120, .end = 200, .exchange = 50}));
  const StepBreakdown parts = BreakDown(plans[0], steps[0].time.ranks[0]);
  EXPECT_EQ(parts, (StepBreakdown{.compute = 50, .tensor_parallel = 30, .bubble = 120}));
  ASSERT_EQ(steps[0].exchanges.size(), 2u);
  EXPECT_EQ(steps[0].exchanges[0],
            (std::vector<ExchangeTime>{
                {.id = forward.WithPiece(1), .bytes = 12, .begin = 101, .end = 140}}));
  EXPECT_TRUE(steps[0].exchanges[1].empty());
}

// Rank 1 begins the pass late, or says so: rank 0 computes as long as before.
TEST(MeasuredExchangesTest, WhatAPeerSaysDoesNotChangeHowLongARankComputes) {
  const InstructionId forward(OpKind::kForward, 0, 0);
  plan::PlanOptions options;
  options.mesh = plan::Mesh::Create({.tensor = 2}).value();
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < 2; ++rank) {
    plans.push_back(plan::BuildTrainPlan(options, rank).value());
  }
  for (const int64_t late : {0, 20, 50, 80, 1000}) {
    std::vector<RankSpans> ranks(2);
    for (size_t rank = 0; rank < 2; ++rank) {
      for (const plan::Instruction& instruction : plans[rank].instructions) {
        const int64_t begin = kStart + (instruction.id == forward && rank == 1 ? 100 + late : 100);
        ranks[rank].spans.push_back({.begin_nanos = begin,
                                     .end_nanos = std::max(begin, kStart + 200),
                                     .instruction = instruction.id.packed(),
                                     .step = 1,
                                     .exchange_nanos = 50});
      }
    }
    const std::vector<TimedStep> steps = MeasureSteps(plans, ranks, 1);
    ASSERT_EQ(steps.size(), 1u);
    for (size_t i = 0; i < plans[0].instructions.size(); ++i) {
      if (plans[0].instructions[i].id != forward) continue;
      const SpanTime& time = steps[0].time.ranks[0][i];
      EXPECT_EQ(time.end - time.begin - time.exchange, 50) << late;
    }
  }
}

TEST_F(MeasuredStepTest, AStepThatOneRankMakesUpDoesNotHideThoseOfTheOthers) {
  RunStep(1);
  for (RankSpans& rank : ranks_) rank.spans.pop_back();
  ranks_[2].spans.push_back({.begin_nanos = 1,
                             .end_nanos = 2,
                             .instruction = plans_[2].instructions[0].id.packed(),
                             .step = 70});
  EXPECT_EQ(Numbers(3), (std::vector<int64_t>{-1}));
}

TEST_F(MeasuredStepTest, AnEvaluationBelongsToItsStepAndNotToTheTimeOfTheStep) {
  RunStep(1);
  const TimedStep calm = MeasureSteps(plans_, ranks_, 3)[0];
  const int64_t end = ranks_[0].spans.back().end_nanos;
  for (const int64_t batch : {0, 1}) {  // of the same ids
    ranks_[0].spans.push_back({.begin_nanos = end + 100 * batch,
                               .end_nanos = end + 100 * batch + 60,
                               .instruction = InstructionId(OpKind::kEvaluate, 0, 0).packed(),
                               .step = 1});
  }
  const TimedStep step = MeasureSteps(plans_, ranks_, 3)[0];
  EXPECT_EQ(step.time.ranks, calm.time.ranks);
  EXPECT_EQ(step.time.end, calm.time.end);
  ASSERT_EQ(step.evaluations[0].size(), 2u);
  EXPECT_EQ(step.evaluations[0][1].begin - step.evaluations[0][0].begin, 100);
  EXPECT_EQ(step.evaluations[0][1].end - step.evaluations[0][1].begin, 60);
  EXPECT_TRUE(step.evaluations[1].empty());
}

TEST_F(MeasuredStepTest, WhatNoPlanHasIsIgnored) {
  EXPECT_TRUE(MeasureSteps(plans_, ranks_, 3).empty());
  ranks_[0].spans.push_back({.begin_nanos = 1, .end_nanos = 2, .instruction = ~0ull, .step = 9});
  EXPECT_TRUE(MeasureSteps(plans_, ranks_, 3).empty());
  RunStep(1);
  EXPECT_EQ(Numbers(3), (std::vector<int64_t>{1}));
  // The same span twice, and a span that ends before it begins.
  ranks_[0].spans.push_back(ranks_[0].spans.back());
  SpanOf(0, InstructionId(OpKind::kForward, 0, 1)).end_nanos = 1;
  const TimedStep step = MeasureSteps(plans_, ranks_, 3)[0];
  const SpanTime& odd = TimeOf(step, 0, InstructionId(OpKind::kForward, 0, 1));
  EXPECT_EQ(odd.ready, odd.end);
}

}  // namespace
}  // namespace megascale::timeline
