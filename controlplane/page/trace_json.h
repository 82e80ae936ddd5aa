// Steps of a job in time, as JSON: where each rank's time went (the heat map), and the instructions
// of one step with their dependencies (the timeline). Pure functions of spans.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "controlplane/trace/job_spans.h"
#include "nlohmann/json.hpp"
#include "runtime/plan/mesh.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::page {

// Returns for each rank the milliseconds of a mean step by kind, over the newest `num_steps` whole
// ones of `steps`, and its slowdown if the job is small enough to analyse at once
// (runtime/diagnose/what_if.h). If `spans` has only some ranks of the job, "ranks" lists them.
nlohmann::json HeatMapJson(const trace::JobSpans& spans,
                           absl::Span<const timeline::TimedStep> steps, int64_t num_steps);

// Which ranks a timeline shows.
enum class TimelineView {
  kPipeline,  // the stages of a replica
  kData,      // the replicas of a stage
  kTensor,    // the tensor-parallel ranks of a stage's replica
};
// Errors: InvalidArgument - another word than "pipeline", "data", "tensor".
absl::StatusOr<TimelineView> TimelineViewFromWord(const std::string& word);

// Returns the ranks that the view shows, ascending: of its group those around `rank`, at most
// kTimelineRanksMax. Requires: the mesh has the rank.
inline constexpr size_t kTimelineRanksMax = 64;
std::vector<int> TimelineRanks(const plan::Mesh& mesh, TimelineView view, int rank);

// Returns the instructions of these ranks, with the indices on which each depends, and what
// connects the ranks: the messages between them, and the collectives that they run together, each
// with the member first for which the others waited. At most kTimelineSpansMax instructions, of
// the ranks nearest to `rank`, so a connection occurs at most once for each of them. Requires:
// `spans` has the ranks of TimelineRanks, and `rank` has at most kTimelineRankSpansMax
// instructions: it is shown, alone, even if it has more than kTimelineSpansMax.
inline constexpr size_t kTimelineSpansMax = 6000;
inline constexpr size_t kTimelineRankSpansMax = 10'000;
nlohmann::json TimelineJson(const trace::JobSpans& spans, const timeline::TimedStep& step,
                            TimelineView view, int rank);

}  // namespace megascale::page
