// Which rank, machine or link has become slower than it was, and than the others have: compares the
// newest steps of a job with older ones. It tells a slow machine from an unequal stage if all ranks
// of a stage are on one machine, and a slow link from a large exchange. Pure functions.
//
// A slowdown that is the same on every machine names no rank.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "runtime/diagnose/operation_graph.h"
#include "runtime/diagnose/what_if.h"

namespace megascale::diagnose {

enum class Change {
  kNone,
  kWorker,   // one worker computes longer
  kMachine,  // all workers of a machine compute longer
  kLink,     // exchanges between two machines take longer, and nothing exonerates either of them
  kMachineLink,  // exchanges of one machine with others take longer, with each that shows it
  kLateWorker,   // exchanges of one worker take longer, also with workers of its own machine
};

struct SlowChange {
  Change what = Change::kNone;
  int worker = -1;        // the worker, or the first one of the machine
  int peer = -1;          // kLink: the first worker of the other machine
  double times = 1;       // how many times longer than before, beyond what all others have changed
  double step_times = 1;  // how many times longer a step takes than before
  // kWorker, kMachine: the same is found if the workers of any one other machine are left out, so
  // that no machine can bring it about by what it says of itself. Never so on two machines.
  bool has_witnesses = false;
};

// Older steps to compare with.
struct History {
  absl::Span<const MeasuredStep> before = {};
  std::vector<int> machine_of = {};  // by worker
};

// Requires: all steps belong to `graph`; `history.machine_of` has an element for each worker, or is
// empty. Few steps, or no machines: kNone.
SlowChange FindChange(const OperationGraph& graph, absl::Span<const MeasuredStep> steps,
                      const History& history);

}  // namespace megascale::diagnose
