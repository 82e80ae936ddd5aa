// Steps of a job in time, as JSON: where each rank's time went (the heat map), and the instructions
// of one step with their dependencies (the timeline). Pure functions of spans.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "controlplane/trace/job_spans.h"
#include "nlohmann/json.hpp"
#include "runtime/timeline/timed_step.h"

namespace megascale::page {

// Returns for each rank the milliseconds of a mean step by kind, over the whole ones of `steps`,
// and its slowdown if the job is small enough to analyse at once (runtime/diagnose/what_if.h).
nlohmann::json HeatMapJson(const trace::JobSpans& spans,
                           absl::Span<const timeline::TimedStep> steps);

// Which ranks a timeline shows.
enum class TimelineView {
  kPipeline,  // the stages of a replica
  kData,      // the replicas of a stage
  kTensor,    // the tensor-parallel ranks of a stage's replica
};
// Errors: InvalidArgument - another word than "pipeline", "data", "tensor".
absl::StatusOr<TimelineView> TimelineViewFromWord(const std::string& word);

// Returns the instructions of the ranks that the view shows around `rank`, with the indices on
// which each depends, and the messages between these ranks. At most kTimelineSpansMax instructions,
// of the first ranks. Requires: `rank` is one of the plans.
inline constexpr size_t kTimelineSpansMax = 6000;
nlohmann::json TimelineJson(const trace::JobSpans& spans, const timeline::TimedStep& step,
                            TimelineView view, int rank);

}  // namespace megascale::page
