#include "controlplane/trace/job_spans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "controlplane/trace/testing/test_spans.h"
#include "runtime/timeline/step_breakdown.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::trace {
namespace {

using control::v1::StageTime;
using control::v1::StreamSpansResponse;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class JobSpansTest : public ::testing::Test {
 protected:
  JobSpansTest()
      : spans_(JobSpans::Create(TestSpec()).value()), planned_(PlannedTime(spans_.plans())) {}

  // Returns a rank's response, from a machine whose clock is `rank` seconds ahead.
  StreamSpansResponse ResponseOf(int rank, int64_t last_step) const {
    const int64_t ahead = rank * 1'000'000'000LL;
    StreamSpansResponse response;
    response.set_rank(rank);
    response.set_node_id("n1");
    response.set_clock_ahead_nanos(ahead);
    response.set_read_nanos(kFirstNanos + last_step * kStepNanos + ahead);
    AddPlannedSteps(spans_.plans()[rank], planned_.ranks[rank], 1, last_step,
                    response.mutable_spans());
    for (auto& span : *response.mutable_spans()) {
      span.set_begin_nanos(span.begin_nanos() + ahead);
      span.set_end_nanos(span.end_nanos() + ahead);
    }
    return response;
  }

  JobSpans spans_;
  timeline::StepTime planned_;
};

TEST_F(JobSpansTest, AStagesTimeIsTheMeanOfWhatItsRanksStepsWentFor) {
  for (int rank = 0; rank < 4; ++rank) spans_.Add(ResponseOf(rank, 4));
  EXPECT_EQ(spans_.num_clocks(), 4);
  EXPECT_EQ(spans_.names()[3].node, "n1");
  EXPECT_EQ(spans_.names()[3].Machine(), "node n1");
  EXPECT_EQ(spans_.names()[3].InSentence(), "rank 3 (node n1, stage 1, data 1)");
  EXPECT_EQ(spans_.names()[3].Text(), "rank 3: node n1, stage 1, data 1");
  const auto stages = StageTimes(spans_, spans_.Measure(3));
  ASSERT_EQ(stages.size(), 2);
  for (const StageTime& stage : stages) {
    const auto rank = 2 * static_cast<size_t>(stage.stage());
    const auto planned = timeline::BreakDown(spans_.plans()[rank], planned_.ranks[rank]);
    EXPECT_EQ(stage.num_ranks(), 2);
    EXPECT_EQ(stage.num_steps(), 3);
    EXPECT_EQ(stage.last_step(), 4);
    const auto seconds = [](int64_t nanos) { return static_cast<double>(nanos) * 1e-9; };
    EXPECT_DOUBLE_EQ(stage.step_seconds(), seconds(planned.total()));
    EXPECT_DOUBLE_EQ(stage.compute_seconds(), seconds(planned.compute));
    EXPECT_DOUBLE_EQ(stage.optimizer_seconds(), seconds(planned.optimizer));
    EXPECT_DOUBLE_EQ(stage.tensor_parallel_seconds(), 0);
    EXPECT_DOUBLE_EQ(stage.pipeline_seconds(), seconds(planned.pipeline));
    EXPECT_DOUBLE_EQ(stage.data_parallel_seconds(), seconds(planned.data_parallel));
    EXPECT_DOUBLE_EQ(stage.data_wait_seconds(), seconds(planned.data_wait));
    EXPECT_DOUBLE_EQ(stage.bubble_seconds(), seconds(planned.bubble));
    EXPECT_GT(planned.compute, 0);
    EXPECT_GT(planned.bubble, 0);
  }
}

TEST_F(JobSpansTest, WhatPassesWaitForExchangesIsNoComputing) {
  job::v1::JobSpec spec = TestSpec();
  spec.mutable_parallel()->set_data_parallel_size(1);
  spec.mutable_parallel()->set_tensor_model_parallel_size(2);
  spans_ = JobSpans::Create(spec).value();
  planned_ = PlannedTime(spans_.plans());
  const plan::InstructionId forward(plan::OpKind::kForward, 0, 0);
  for (int rank = 0; rank < 4; ++rank) {
    StreamSpansResponse response = ResponseOf(rank, 2);
    for (auto& span : *response.mutable_spans()) {
      if (span.instruction() == forward.packed()) span.set_exchange_nanos(1'000);
    }
    spans_.Add(response);
  }
  const auto steps = spans_.Measure(2);
  const auto stages = StageTimes(spans_, steps);
  ASSERT_EQ(stages.size(), 2);
  const auto planned = timeline::BreakDown(spans_.plans()[0], planned_.ranks[0]);
  EXPECT_DOUBLE_EQ(stages[0].tensor_parallel_seconds(), 1e-6);
  EXPECT_DOUBLE_EQ(stages[0].compute_seconds(), static_cast<double>(planned.compute) * 1e-9 - 1e-6);
  EXPECT_EQ(stages[1].tensor_parallel_seconds(), 0);
}

TEST_F(JobSpansTest, ARankThatCannotBeReadLeavesTheOthers) {
  for (int rank = 0; rank < 3; ++rank) spans_.Add(ResponseOf(rank, 2));
  StreamSpansResponse away;
  away.set_rank(3);
  away.set_error("node n2: is away");
  spans_.Add(away);
  EXPECT_THAT(spans_.errors(), ElementsAre("rank 3: node n2: is away"));
  const auto stages = StageTimes(spans_, spans_.Measure(5));
  ASSERT_EQ(stages.size(), 2);
  EXPECT_EQ(stages[0].num_ranks(), 2);
  EXPECT_EQ(stages[1].num_ranks(), 1);
}

TEST_F(JobSpansTest, NothingIsToldOfStepsThatAreNotWhole) {
  EXPECT_THAT(StageTimes(spans_, spans_.Measure(3)), IsEmpty());
  for (int rank = 0; rank < 3; ++rank) spans_.Add(ResponseOf(rank, 1));
  StreamSpansResponse behind = ResponseOf(3, 1);
  behind.mutable_spans()->RemoveLast();
  spans_.Add(behind);
  EXPECT_THAT(StageTimes(spans_, spans_.Measure(3)), IsEmpty());
}

TEST_F(JobSpansTest, WhatCannotBeIsIgnored) {
  for (int rank = 0; rank < 4; ++rank) spans_.Add(ResponseOf(rank, 1));
  const auto good = StageTimes(spans_, spans_.Measure(3));
  for (const int rank : {-1, 4, std::numeric_limits<int>::max()}) {
    StreamSpansResponse nobody;
    nobody.set_rank(rank);
    nobody.set_error("it is nobody");
    spans_.Add(nobody);
  }
  StreamSpansResponse mad;
  mad.set_rank(1);
  mad.set_clock_ahead_nanos(1'000'000'000);
  mad.set_read_nanos(std::numeric_limits<int64_t>::max());
  for (const int64_t nanos :
       {std::numeric_limits<int64_t>::min(), int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    telemetry::v1::Span* span = mad.add_spans();
    span->set_begin_nanos(nanos);
    span->set_end_nanos(nanos);
    span->set_step(1);
    span->set_instruction(spans_.plans()[1].instructions[0].id.packed());
  }
  for (const int64_t step : {int64_t{-1}, int64_t{101}, std::numeric_limits<int64_t>::max()}) {
    telemetry::v1::Span* span = mad.add_spans();
    *span = ResponseOf(1, 1).spans(0);
    span->set_step(step);
  }
  spans_.Add(mad);
  for (const telemetry::Span& span : spans_.ranks()[1].spans) EXPECT_EQ(span.step, 1);
  EXPECT_THAT(spans_.errors(), IsEmpty());
  const auto again = StageTimes(spans_, spans_.Measure(3));
  ASSERT_EQ(again.size(), good.size());
  for (int i = 0; i < good.size(); ++i) {
    EXPECT_EQ(again[i].SerializeAsString(), good[i].SerializeAsString());
  }
}

TEST_F(JobSpansTest, SomeRanksAreMeasuredAsIfTheOthersDidNotExist) {
  std::vector<StreamSpansResponse> responses;
  for (int rank = 0; rank < 4; ++rank) responses.push_back(ResponseOf(rank, 1));
  spans_ = JobSpans::Create(TestSpec(), {1, 3}).value();
  ASSERT_EQ(spans_.plans().size(), 2);
  EXPECT_EQ(spans_.plans()[1].rank, 3);
  EXPECT_EQ(spans_.IndexOf(3), 1);
  EXPECT_EQ(spans_.IndexOf(2), -1);
  for (const StreamSpansResponse& response : responses) spans_.Add(response);
  const auto stages = StageTimes(spans_, spans_.Measure(3));
  ASSERT_EQ(stages.size(), 2);
  EXPECT_EQ(stages[0].num_ranks(), 1);
  EXPECT_EQ(stages[1].num_ranks(), 1);
  EXPECT_TRUE(absl::IsInvalidArgument(JobSpans::Create(TestSpec(), {1, 4}).status()));
}

TEST_F(JobSpansTest, ASpecificationWithoutPlanIsRefused) {
  job::v1::JobSpec spec = TestSpec();
  spec.mutable_parallel()->set_pipeline_model_parallel_size(3);
  EXPECT_TRUE(absl::IsInvalidArgument(JobSpans::Create(spec).status()));
}

}  // namespace
}  // namespace megascale::trace
