// Writes planned or measured steps as a trace for ui.perfetto.dev and chrome://tracing. A pure
// function: the same plans and times give the same bytes. Source: "Trace Event Format", the JSON
// object format.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::timeline {

// Returns the trace as JSON. It has a process for each rank, named by `names` (by rank; empty:
// NameOf). The process has a thread for each stream, and a thread for the exchanges of
// tensor-parallel ranks within passes; the slices of these exchanges have the pass's id with a
// piece. The instructions of an evaluation are slices of its step.
//
// Each instruction that has begun is a slice from when it was ready to its end. Its name is the id;
// its arguments are the step, micro-batch, chunk, bytes and FLOPs, and "unfinished" if it was still
// running. The time that it waited for peers is a slice "waits" inside it. Arrows go from each
// dependency to the instructions on other streams that waited for it, and from each send to its
// receive if the receive has ended. Times are in microseconds. Requires: `steps` belong to `plans`.
// Cost: about 1 KB of text for an instruction.
std::string PerfettoTrace(absl::Span<const plan::RankPlan> plans, absl::Span<const TimedStep> steps,
                          absl::Span<const std::string> names = {});

}  // namespace megascale::timeline
