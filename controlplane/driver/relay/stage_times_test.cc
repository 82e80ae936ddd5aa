#include "controlplane/driver/relay/stage_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controlplane/trace/testing/test_spans.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// One agent with all ranks, which have completed 9 steps.
class StageTimesTest : public ::testing::Test {
 protected:
  StageTimesTest() {
    job_.set_job_id("j");
    job_.set_attempt(1);
    job_.set_state(control::JOB_STATE_RUNNING);
    job_.set_last_step(9);
    *job_.mutable_spec() = trace::TestSpec();
    for (int rank = 0; rank < 4; ++rank) {
      job_.add_ranks()->set_node_id("n");
      job_.mutable_ranks(rank)->mutable_status()->set_rank(rank);
    }
  }

  google::protobuf::RepeatedPtrField<control::StageTime> Measure() {
    SpanStreamPorts ports;
    ports.job = [this] { return job_; };
    ports.cluster = [] { return control::GetClusterResponse(); };
    ports.fetch = [this](const std::string&, const agent::FetchSpans& fetch) {
      return Fetch(fetch);
    };
    ports.now = [this] { return now_; };
    return MeasureStages(job_, ports);
  }

  absl::StatusOr<agent::SpanChunk> Fetch(const agent::FetchSpans& fetch) {
    ++num_fetches_;
    now_ += trip_;
    if (away_) return absl::UnavailableError("node n: is away");
    agent::SpanChunk chunk;
    chunk.set_monotonic_nanos(trace::kFirstNanos + 9 * trace::kStepNanos);
    if (fetch.clock_only()) return chunk;
    first_step_ = fetch.first_step();
    const auto rank = static_cast<size_t>(fetch.rank());
    trace::AddPlannedSteps(plans_[rank], planned_.ranks[rank], first_step_, 9,
                           chunk.mutable_spans());
    return chunk;
  }

  const std::vector<plan::RankPlan> plans_ =
      trace::JobSpans::Create(trace::TestSpec()).value().plans();
  const timeline::StepTime planned_ = trace::PlannedTime(plans_);
  control::Job job_;
  absl::Duration now_ = absl::Seconds(100);
  absl::Duration trip_ = absl::Milliseconds(1);
  bool away_ = false;
  int num_fetches_ = 0;
  int64_t first_step_ = 0;
};

TEST_F(StageTimesTest, TellsOfTheNewestStepsOfEachStage) {
  const auto stages = Measure();
  ASSERT_THAT(stages, SizeIs(2));
  EXPECT_EQ(first_step_, 7);
  for (const control::StageTime& stage : stages) {
    EXPECT_EQ(stage.num_steps(), 3);
    EXPECT_EQ(stage.last_step(), 9);
    EXPECT_GT(stage.compute_seconds(), 0);
  }
}

TEST_F(StageTimesTest, AJobThatDoesNotTrainIsNotAskedFor) {
  job_.set_state(control::JOB_STATE_RECOVERING);
  EXPECT_THAT(Measure(), IsEmpty());
  EXPECT_EQ(num_fetches_, 0);
}

TEST_F(StageTimesTest, NeitherIsOneOfManyRanks) {
  while (job_.ranks_size() <= kMeasuredRanksMax) *job_.add_ranks() = job_.ranks(0);
  EXPECT_THAT(Measure(), IsEmpty());
  EXPECT_EQ(num_fetches_, 0);
}

TEST_F(StageTimesTest, SlowOrAbsentAgentsTakeNoLongerThanTheTimeout) {
  away_ = true;
  EXPECT_THAT(Measure(), IsEmpty());
  EXPECT_EQ(num_fetches_, 1);
  away_ = false;
  trip_ = kMeasureTimeout / 5;  // five for the clock, one for the first rank
  EXPECT_THAT(Measure(), IsEmpty());
  EXPECT_EQ(num_fetches_, 1 + 6);
}

}  // namespace
}  // namespace megascale::driver
