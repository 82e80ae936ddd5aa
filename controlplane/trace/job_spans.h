// The spans of a running job's newest steps, from all ranks, and where their time went.
// Threads: plain data; one at a time.
//
//   ASSIGN_OR_RETURN(JobSpans spans, JobSpans::Create(job.spec()));
//   spans.Add(response);  // of each rank
//   const std::vector<timeline::TimedStep> steps = spans.Measure(5);
//   *job.mutable_stage_times() = StageTimes(spans, steps);
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/timeline/measured_step.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::trace {

// The largest plausible monotonic clock: no machine runs for 36 years. Larger and negative times
// are ignored, so that sums of times do not overflow.
inline constexpr int64_t kClockNanosMax = int64_t{1} << 60;

class JobSpans {
 public:
  // Makes an object without spans, for a job with this resolved specification.
  // Errors: InvalidArgument - the specification cannot be planned.
  static absl::StatusOr<JobSpans> Create(const megascale::job::v1::JobSpec& spec);

  // Adds the driver's message about one rank. Implausible values are ignored, because they come
  // from other machines: times beyond kClockNanosMax, and steps that the job does not have.
  void Add(const megascale::control::v1::StreamSpansResponse& response);

  // See timeline::MeasureSteps.
  std::vector<timeline::TimedStep> Measure(int num_steps) const;

  // By rank.
  const std::vector<plan::RankPlan>& plans() const { return plans_; }
  const std::vector<timeline::RankSpans>& ranks() const { return ranks_; }  // the driver's clock
  const std::vector<std::string>& names() const { return names_; }  // "rank 3: node b, stage 1 …"

  // Why the spans of some ranks could not be read.
  const std::vector<std::string>& errors() const { return errors_; }
  // Number of spans of this attempt that the agents could not read in time.
  int64_t num_lost() const { return num_lost_; }
  // Number of different clocks, and the largest error of the correction between them.
  int num_clocks() const { return static_cast<int>(clocks_.size()); }
  int64_t clock_error_nanos() const { return clock_error_nanos_; }

 private:
  JobSpans() = default;

  std::vector<plan::RankPlan> plans_;
  int64_t steps_max_ = 0;
  std::vector<timeline::RankSpans> ranks_;
  std::vector<std::string> names_;
  std::vector<std::string> errors_;
  int64_t num_lost_ = 0;
  std::set<int64_t> clocks_;
  int64_t clock_error_nanos_ = 0;
};

// Returns the times of each stage of which a whole step is known, in order. Requires: `steps` come
// from `spans`.
google::protobuf::RepeatedPtrField<megascale::control::v1::StageTime> StageTimes(
    const JobSpans& spans, absl::Span<const timeline::TimedStep> steps);

}  // namespace megascale::trace
