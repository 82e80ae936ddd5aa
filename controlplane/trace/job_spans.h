// The spans of a running job's newest steps, from all ranks, and where their time went.
// Threads: plain data; one at a time.
//
//   ASSIGN_OR_RETURN(JobSpans spans, JobSpans::Create(job.spec()));
//   spans.Add(response);  // of each rank
//   const std::vector<timeline::TimedStep> steps = spans.Measure(5);
//   *job.mutable_stage_times() = StageTimes(spans, steps);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "controlplane/trace/rank_name.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/plan_options.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/timeline/measured_step.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::trace {

// The largest plausible monotonic clock: no machine runs for 36 years. Larger and negative times
// are ignored, so that sums of times do not overflow.
inline constexpr int64_t kClockNanosMax = int64_t{1} << 60;

// Which ranks have a plan with instructions. The plans of all ranks of a large job take much
// memory; a reader of few ranks needs only the plans of these ranks.
enum class PlannedRanks { kAll, kRead };

// The plan of a step for each stage of a job: all that JobSpans takes from the specification.
// Making them is slow for a job of many instructions; once made, they serve any number of JobSpans.
// Threads: immutable, any.
class StagePlans {
 public:
  // `spec`: resolved. Errors: InvalidArgument - the specification cannot be planned.
  static absl::StatusOr<std::shared_ptr<const StagePlans>> Create(
      const megascale::job::v1::JobSpec& spec);

  const plan::Mesh& mesh() const { return plans_.front().mesh; }
  int64_t steps_max() const { return steps_max_; }  // of the job
  // By stage: the plan of the stage's first rank.
  absl::Span<const plan::RankPlan> plans() const { return plans_; }
  // Requires: the mesh has the rank.
  plan::RankPlan PlanOf(int rank) const;
  // Returns a function that returns the plan of a batch of an evaluation for the first rank of a
  // rank's stage, as diagnose::PositionsOf takes it; the first call makes these plans. The plans
  // live as long as the object, and the function must not outlive it. Requires of the function: the
  // mesh has the rank.
  std::function<const plan::RankPlan*(int rank)> EvaluationPlans() const;

 private:
  // Made when they are first needed: few readers look at a job that stands still.
  struct Evaluation {
    std::once_flag once;
    std::vector<plan::RankPlan> plans;  // by stage; empty: they cannot be made
  };

  StagePlans() : evaluation_(std::make_shared<Evaluation>()) {}

  plan::PlanOptions options_;
  std::vector<plan::RankPlan> plans_;
  std::shared_ptr<Evaluation> evaluation_;
  int64_t steps_max_ = 0;
};

// Returns for each rank the number of its machine, the same for all ranks on one machine; -1: the
// rank has no machine.
std::vector<int> MachineOfRanks(const megascale::control::v1::Job& job);

class JobSpans {
 public:
  // Makes an object without spans, for a job with this resolved specification. `ranks`: the ranks
  // that the object has, ascending; empty: all ranks of the job. Ranks that are left out count as
  // absent: no rank is seen to wait for them. Cost: memory for the plans of the ranks that it has.
  // Errors: InvalidArgument - the specification cannot be planned, or has no such rank.
  static absl::StatusOr<JobSpans> Create(const megascale::job::v1::JobSpec& spec,
                                         absl::Span<const int> ranks = {},
                                         PlannedRanks planned = PlannedRanks::kAll);
  // The same for a job with these plans. Errors: InvalidArgument - it has no such rank.
  static absl::StatusOr<JobSpans> Create(std::shared_ptr<const StagePlans> stages,
                                         absl::Span<const int> ranks = {},
                                         PlannedRanks planned = PlannedRanks::kAll);

  // Adds the driver's message about one rank. Implausible values are ignored, because they come
  // from other machines: times beyond kClockNanosMax, and steps that the job does not have.
  void Add(const megascale::control::v1::StreamSpansResponse& response);

  // Makes the plan of a rank that it has, if there is none yet. Add does so, too.
  void Plan(int rank);

  // See timeline::MeasureSteps.
  std::vector<timeline::TimedStep> Measure(int num_steps) const;

  // What the plans of the ranks were made of.
  const std::shared_ptr<const StagePlans>& stages() const { return stages_; }
  // One for each rank that it has, ascending by rank; with PlannedRanks::kRead, ranks that were not
  // read have no instructions.
  const std::vector<plan::RankPlan>& plans() const { return plans_; }
  const std::vector<timeline::RankSpans>& ranks() const { return ranks_; }  // the driver's clock
  const std::vector<RankName>& names() const { return names_; }
  // Returns the rank's index in plans(), ranks() and names(); -1: it has no such rank.
  int IndexOf(int rank) const;

  // Why the spans of some ranks could not be read.
  const std::vector<std::string>& errors() const { return errors_; }
  // Number of spans of this attempt that the agents could not read in time.
  int64_t num_lost() const { return num_lost_; }
  // Number of different clocks, and the largest error of the correction between them.
  int num_clocks() const { return static_cast<int>(clocks_.size()); }
  int64_t clock_error_nanos() const { return clock_error_nanos_; }

 private:
  JobSpans() = default;

  std::shared_ptr<const StagePlans> stages_;
  std::vector<plan::RankPlan> plans_;
  std::vector<timeline::RankSpans> ranks_;
  std::vector<RankName> names_;
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
