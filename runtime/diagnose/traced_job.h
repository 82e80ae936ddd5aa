// A training job from a trace of its operations, in the form that what_if.h analyses. The trace
// shows steps of Megatron-LM in the form that ByteDance publishes (StragglerAnalysis): pid is the
// data-parallel rank, tid is rank * 5 + a number for the stream, and a communication's time is its
// transfer, without the wait for peers. A pure function.
//
// What an operation waits for, on its own worker:
// - forward and backward passes run in the order in which they began in the trace;
// - sends of one direction run in order, and so do receives; a receive comes after the previous
//   pass and before its own pass; a send comes after its pass;
// - the first forward pass comes after the gathering of the chunk's parameters;
// - after the last pass: gc, all-reduce of layer-norm and embedding gradients, reduce-scatter,
//   clipping, optimizer.
// Meetings: a send with its receive; collectives of the data-parallel ranks; the embedding's
// all-reduce of the first and last stage; clipping, of all workers.
// Source: section 6.1 of the OSDI '25 paper named in what_if.h, and the documentation of its tool.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/diagnose/chrome_trace.h"
#include "runtime/diagnose/operation_graph.h"
#include "runtime/diagnose/what_if.h"

namespace megascale::diagnose {

struct TracedJob {
  OperationGraph graph;
  std::vector<MeasuredStep> steps;  // ascending
  int num_replicas = 0;
  int num_stages = 0;
  int64_t num_steps_left_out = 0;          // steps with other operations than most
  int64_t num_twice = 0;                   // events of an operation that occurs twice; left out
  std::vector<std::string> ignored_names;  // of operations that the analysis does not know
};

// Requires: `trace` came from ReadChromeTrace. Errors: InvalidArgument - it is no trace of training
// steps; passes of several chunks on one stage (interleaved schedules); operations without their
// counterpart; more operations that occur twice than kBadEventsMax. The message names the step, the
// rank and the operation.
absl::StatusOr<TracedJob> JobOfTrace(const ChromeTrace& trace);

}  // namespace megascale::diagnose
