// Steps of a job in time, as JSON: where each rank's time went (the heat map), and the instructions
// of one step with their dependencies (the timeline). Pure functions of spans.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "controlplane/trace/job_spans.h"
#include "nlohmann/json.hpp"
#include "runtime/plan/mesh.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::page {

// Returns for each rank the milliseconds of a mean step by kind, over the newest `num_steps` whole
// steps of `steps`; and each rank's slowdown, if the job is small enough to analyse at once
// (runtime/diagnose/what_if.h). If `spans` has only some ranks of the job, "ranks" lists them, and
// each of these stands for "ranks_each" ranks, itself and those that follow.
nlohmann::json HeatMapJson(const trace::JobSpans& spans,
                           absl::Span<const timeline::TimedStep> steps, int64_t num_steps);

// Returns the ranks that a timeline along `axis` shows, ascending: `rank` and those that differ
// from it in this axis alone. If these are more than kTimelineRanksMax, returns the ones around
// `rank`. Requires: the mesh has the rank and the axis.
inline constexpr size_t kTimelineRanksMax = 64;
std::vector<int> TimelineRanks(const plan::Mesh& mesh, plan::Axis axis, int rank);

// Returns the instructions of the ranks of TimelineRanks, each with the indices of those on which
// it depends; and what connects the ranks: the messages between them, and the collectives that they
// run together. In a collective, the member for which the others waited comes first. If there are
// more than kTimelineSpansMax instructions, returns only those of the ranks nearest to `rank`.
// There are no more connections than instructions. Requires: `spans` has the ranks of
// TimelineRanks, and `rank` has at most kTimelineRankSpansMax instructions: it is shown, alone,
// even if it has more than kTimelineSpansMax.
inline constexpr size_t kTimelineSpansMax = 6000;
inline constexpr size_t kTimelineRankSpansMax = 10'000;
nlohmann::json TimelineJson(const trace::JobSpans& spans, const timeline::TimedStep& step,
                            plan::Axis axis, int rank);

}  // namespace megascale::page
