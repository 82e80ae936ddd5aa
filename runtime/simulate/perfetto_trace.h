// Steps as a trace that ui.perfetto.dev and chrome://tracing open, planned and measured ones alike.
// A pure function: the same plans and times give the same bytes.
// Source: "Trace Event Format", the JSON object format.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "runtime/plan/step_plan.h"
#include "runtime/simulate/step_time.h"

namespace megascale::simulate {

// A process for each rank, named by `names` (by rank; empty: NameOf), a thread for each stream and
// one for what tensor-parallel ranks exchanged within passes, whose slices have the passes' ids
// with a piece. A slice for each instruction that has begun, from when it was ready to its end,
// named by its id, with the step, micro-batch, chunk, bytes and FLOPs as arguments; what it waited
// for peers at its beginning is a slice "waits" inside it. One that runs still has the argument
// "unfinished". Arrows go from each dependency to what waited for it on another stream, and from
// each send to its receive, once that has ended. Times are microseconds. Requires: `steps` are of
// `plans`. Cost: about 1 KB of text for an instruction.
std::string PerfettoTrace(absl::Span<const plan::RankPlan> plans, absl::Span<const TimedStep> steps,
                          absl::Span<const std::string> names = {});

}  // namespace megascale::simulate
