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
// ones of `steps`, and its slowdown if the job is small enough to analyse at once
// (runtime/diagnose/what_if.h). If `spans` has only some ranks of the job, "ranks" lists them, and
// each stands for "ranks_each" ranks from its own on.
nlohmann::json HeatMapJson(const trace::JobSpans& spans,
                           absl::Span<const timeline::TimedStep> steps, int64_t num_steps);

// Returns the ranks that a timeline along `axis` shows, ascending: of those that differ from `rank`
// in this axis alone the ones around it, at most kTimelineRanksMax. Requires: the mesh has the rank
// and the axis.
inline constexpr size_t kTimelineRanksMax = 64;
std::vector<int> TimelineRanks(const plan::Mesh& mesh, plan::Axis axis, int rank);

// Returns the instructions of these ranks, with the indices on which each depends, and what
// connects the ranks: the messages between them, and the collectives that they run together, each
// with the member first for which the others waited. At most kTimelineSpansMax instructions, of
// the ranks nearest to `rank`, so a connection occurs at most once for each of them. Requires:
// `spans` has the ranks of TimelineRanks, and `rank` has at most kTimelineRankSpansMax
// instructions: it is shown, alone, even if it has more than kTimelineSpansMax.
inline constexpr size_t kTimelineSpansMax = 6000;
inline constexpr size_t kTimelineRankSpansMax = 10'000;
nlohmann::json TimelineJson(const trace::JobSpans& spans, const timeline::TimedStep& step,
                            plan::Axis axis, int rank);

}  // namespace megascale::page
