// Which spans and plans of jobs the page keeps, and for how long.
#include "controlplane/page/job_traces.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/base/clock.h"
#include "runtime/base/stop_signal.h"
#include "runtime/plan/mesh.h"
#include "tests/page/test_fleet.h"

namespace megascale::page {
namespace {

class JobTracesTest : public ::testing::Test {
 protected:
  std::shared_ptr<const trace::StagePlans> StagesFor(const control::v1::Job& job) {
    clock_.Advance(absl::Seconds(10));  // the spans are read again
    return traces_.ForHeatMap(job, 5).value()->spans.stages();
  }
  control::v1::Job Named(const std::string& job_id) {
    control::v1::Job job = fleet_.job();
    job.set_job_id(job_id);
    return job;
  }

  TestFleet fleet_;
  base::FakeClock clock_;
  base::StopSignal stop_;
  JobTraces traces_{{.source = &fleet_, .clock = &clock_, .stop = &stop_}};
};

TEST_F(JobTracesTest, PlansAreMadeOnceForEachJob) {
  const auto stages = StagesFor(fleet_.job());
  EXPECT_EQ(StagesFor(fleet_.job()), stages);
  EXPECT_EQ(fleet_.num_span_reads(), 2);
  const auto timeline = traces_.ForTimeline(fleet_.job(), 5, plan::Axis::kData, 13);
  EXPECT_EQ(timeline.value()->spans.stages(), stages);
  fleet_.job().set_attempt(fleet_.job().attempt() + 1);
  EXPECT_EQ(StagesFor(fleet_.job()), stages) << "all attempts run the same specification";
}

TEST_F(JobTracesTest, PlansOfAJobThatHasEndedOrIsForgottenAreDropped) {
  std::weak_ptr<const trace::StagePlans> stages = StagesFor(fleet_.job());
  traces_.Keep({fleet_.job()});
  EXPECT_FALSE(stages.expired());
  control::v1::Job ended = fleet_.job();
  ended.mutable_ended_at()->set_seconds(1);
  traces_.Keep({ended});
  EXPECT_TRUE(stages.expired());
  EXPECT_TRUE(absl::IsFailedPrecondition(traces_.ForHeatMap(ended, 5).status()));
  stages = StagesFor(fleet_.job());
  traces_.Keep({});
  EXPECT_TRUE(stages.expired());
}

TEST_F(JobTracesTest, PlansOfFewJobsAreKeptThoseOfTheJobUsedLongestAgoGoFirst) {
  const control::v1::Job first = Named("first");
  const control::v1::Job second = Named("second");
  const auto of_first = StagesFor(first);
  const auto of_second = StagesFor(second);
  StagesFor(Named("third"));
  EXPECT_EQ(StagesFor(first), of_first);
  StagesFor(Named("fourth"));
  EXPECT_EQ(StagesFor(first), of_first);
  EXPECT_NE(StagesFor(second), of_second);
}

}  // namespace
}  // namespace megascale::page
