// What the ranks of a running job told of their newest steps, and where their time went.
// Threads: plain data; one at a time.
//
//   ASSIGN_OR_RETURN(JobSpans spans, JobSpans::Create(job.spec()));
//   spans.Add(response);  // of each rank
//   const std::vector<simulate::TimedStep> steps = spans.Measure(5);
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
#include "runtime/plan/step_plan.h"
#include "runtime/simulate/measured_step.h"
#include "runtime/simulate/step_time.h"

namespace megascale::trace {

// No machine runs for so long (36 years): a clock that shows more, or less than 0, is not believed,
// and sums of times do not overflow.
inline constexpr int64_t kClockNanosMax = int64_t{1} << 60;

class JobSpans {
 public:
  // Of a job with this resolved specification, of whose ranks nothing is known yet.
  // Errors: InvalidArgument - the specification cannot be planned.
  static absl::StatusOr<JobSpans> Create(const megascale::job::v1::JobSpec& spec);

  // Takes what the driver says of one rank. What cannot be so is ignored: it comes from other
  // machines.
  void Add(const megascale::control::v1::StreamSpansResponse& response);

  // See simulate::MeasureSteps.
  std::vector<simulate::TimedStep> Measure(int num_steps) const;

  // By rank.
  const std::vector<plan::RankPlan>& plans() const { return plans_; }
  const std::vector<simulate::RankSpans>& ranks() const { return ranks_; }  // the driver's clock
  const std::vector<std::string>& names() const { return names_; }  // "rank 3: node b, stage 1 …"

  // Of ranks that could not be read, why.
  const std::vector<std::string>& errors() const { return errors_; }
  // Spans of this attempt that no agent could keep.
  int64_t num_lost() const { return num_lost_; }
  // How far clocks are apart, and how far that is off at most.
  int num_clocks() const { return static_cast<int>(clocks_.size()); }
  int64_t clock_error_nanos() const { return clock_error_nanos_; }

 private:
  JobSpans() = default;

  std::vector<plan::RankPlan> plans_;
  std::vector<simulate::RankSpans> ranks_;
  std::vector<std::string> names_;
  std::vector<std::string> errors_;
  int64_t num_lost_ = 0;
  std::set<int64_t> clocks_;
  int64_t clock_error_nanos_ = 0;
};

// Of each stage of which a whole step is known, in order. Requires: `steps` are of `spans`.
google::protobuf::RepeatedPtrField<megascale::control::v1::StageTime> StageTimes(
    const JobSpans& spans, absl::Span<const simulate::TimedStep> steps);

}  // namespace megascale::trace
