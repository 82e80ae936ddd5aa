#include "runtime/timeline/step_breakdown.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/plan/plan_options.h"
#include "runtime/simulate/step_time.h"

#include <gtest/gtest.h>

#include <vector>

namespace megascale::timeline {
namespace {

using plan::GroupKind;
using plan::Instruction;
using plan::InstructionId;
using plan::OpKind;
using plan::RankPlan;

constexpr SpanTime kNever = {.state = SpanState::kNotBegun};

// A rank's step by hand: instructions, and when they ran.
struct Step {
  RankPlan plan;
  std::vector<SpanTime> spans;

  Step& Add(OpKind kind, SpanTime span, int microbatch = 0) {
    const plan::Operation& operation = plan::OperationOf(kind);
    Instruction instruction;
    instruction.stream = operation.stream;
    instruction.group = operation.meeting.group;
    instruction.id = InstructionId(kind, 1, microbatch);
    plan.instructions.push_back(instruction);
    spans.push_back(span);
    return *this;
  }
  StepBreakdown Of() const { return BreakDown(plan, spans); }
};

TEST(StepBreakdownTest, OneAfterTheOtherEachCountsForItself) {
  Step step;
  step.Add(OpKind::kLoadBatch, {100, 100, 107})
      .Add(OpKind::kReceiveActivation, {107, 107, 110})
      .Add(OpKind::kForward, {110, 110, 130})
      .Add(OpKind::kReduceGradients, {130, 130, 141})
      .Add(OpKind::kReduceNorm, {141, 141, 142})
      .Add(OpKind::kOptimizerStep, {142, 142, 150});
  EXPECT_EQ(
      step.Of(),
      (StepBreakdown{
          .compute = 20, .optimizer = 8, .pipeline = 3, .data_parallel = 12, .data_wait = 7}));
  EXPECT_EQ(step.Of().total(), 50);
}

TEST(StepBreakdownTest, CommunicationBehindComputingIsHidden) {
  Step step;
  step.Add(OpKind::kForward, {0, 0, 10})
      .Add(OpKind::kReduceGradients, {2, 2, 14})
      .Add(OpKind::kReceiveActivation, {3, 3, 5});
  EXPECT_EQ(step.Of(), (StepBreakdown{.compute = 10, .data_parallel = 4}));
}

TEST(StepBreakdownTest, WhatAPassWaitsForExchangesIsTensorParallelWhateverElseGoesOn) {
  Step step;
  step.Add(OpKind::kForward, {.ready = 0, .begin = 3, .end = 10, .exchange = 2})
      .Add(OpKind::kForward, {.ready = 10, .begin = 10, .end = 20, .exchange = 10}, 1)
      .Add(OpKind::kReduceGradients, {10, 10, 25});
  step.plan.instructions[0].group = GroupKind::kTensor;
  step.plan.instructions[1].group = GroupKind::kTensor;
  EXPECT_EQ(step.Of(),
            (StepBreakdown{.compute = 5, .tensor_parallel = 12, .data_parallel = 5, .bubble = 3}));
  EXPECT_EQ(step.Of().total(), 25);
}

TEST(StepBreakdownTest, OverlappingCommunicationCountsOnceTheReceiveFirstTheSendLast) {
  Step step;
  step.Add(OpKind::kReceiveActivation, {0, 0, 4})
      .Add(OpKind::kReduceGradients, {2, 2, 8})
      .Add(OpKind::kSendActivation, {5, 5, 11})
      .Add(OpKind::kLoadBatch, {10, 10, 12});
  EXPECT_EQ(step.Of(), (StepBreakdown{.pipeline = 4 + 3, .data_parallel = 4, .data_wait = 1}));
}

TEST(StepBreakdownTest, GapsAndWaitingForPeersAreTheBubble) {
  Step step;
  step.Add(OpKind::kReceiveActivation, {0, 30, 32})
      .Add(OpKind::kForward, {32, 32, 40})
      .Add(OpKind::kForward, {45, 45, 50}, 1);
  EXPECT_EQ(step.Of(), (StepBreakdown{.compute = 13, .pipeline = 2, .bubble = 30 + 5}));
  EXPECT_EQ(step.Of().total(), 50);
}

TEST(StepBreakdownTest, WhatRunsStillCountsUpToWhenItWasSeenAndWhatHasNotBegunNot) {
  Step step;
  step.Add(OpKind::kForward, {10, 10, 20})
      .Add(OpKind::kReceiveActivation, {20, 35, 35, SpanState::kRuns})
      .Add(OpKind::kForward, kNever, 1);
  EXPECT_EQ(step.Of(), (StepBreakdown{.compute = 10, .bubble = 15}));
  step.spans[0] = kNever;
  step.spans[1] = kNever;
  EXPECT_EQ(step.Of(), StepBreakdown());
}

TEST(StepBreakdownTest, InstantsAndEqualTimesAddNothing) {
  Step step;
  step.Add(OpKind::kForward, {5, 5, 5})
      .Add(OpKind::kSendActivation, {5, 5, 9})
      .Add(OpKind::kForward, {9, 9, 9}, 1)
      .Add(OpKind::kReduceNorm, {5, 9, 9});
  EXPECT_EQ(step.Of(), (StepBreakdown{.pipeline = 4}));
}

TEST(StepBreakdownTest, PartsOfEveryPlannedRankAddUpToItsStep) {
  plan::PlanOptions options;
  options.mesh = plan::Mesh::Create({.data = 2, .pipeline = 4}).value();
  options.num_microbatches = 7;
  options.batch_bytes = 3;
  options.chunks.assign(4, {.forward_flops = 100,
                            .backward_flops = 230,
                            .output_bytes = 11,
                            .gradient_bytes = 150,
                            .parameter_bytes = 70});
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < 8; ++rank) {
    plans.push_back(plan::BuildTrainPlan(options, rank).value());
  }
  const StepTime time =
      simulate::TimeStep(plans, [](const plan::RankPlan&, const plan::Instruction& i) {
        return i.flops + i.bytes;
      }).value();
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    const StepBreakdown parts = BreakDown(plans[rank], time.ranks[rank]);
    int64_t first = time.end;
    int64_t last = 0;
    for (const SpanTime& span : time.ranks[rank]) {
      first = std::min(first, span.ready);
      last = std::max(last, span.end);
    }
    EXPECT_EQ(parts.total(), last - first) << rank;
    EXPECT_EQ(parts.compute, 7 * 330) << rank;
    EXPECT_GT(parts.pipeline, 0) << rank;
    EXPECT_GT(parts.data_parallel, 0) << rank;
    EXPECT_GT(parts.bubble, 0) << rank;
  }
}

TEST(StepBreakdownTest, EveryOperationCountsForOnePartThatIsNotTheBubble) {
  for (const plan::Operation& operation : plan::AllOperations()) {
    Step step;
    step.Add(operation.kind, {0, 0, 10});
    EXPECT_EQ(step.Of().total(), 10) << operation.letters;
    EXPECT_EQ(step.Of().bubble, 0) << operation.letters;
    const bool shard_computes = operation.op_class == plan::OpClass::kOptimizer;
    EXPECT_EQ(step.Of().optimizer, shard_computes ? 10 : 0) << operation.letters;
  }
}

TEST(StepBreakdownTest, SumsAddPartByPart) {
  StepBreakdown sum = {1, 2, 3, 4, 5, 6, 7};
  sum += {10, 20, 30, 40, 50, 60, 70};
  EXPECT_EQ(sum, (StepBreakdown{11, 22, 33, 44, 55, 66, 77}));
  EXPECT_EQ(sum.total(), 308);
}

}  // namespace
}  // namespace megascale::timeline
