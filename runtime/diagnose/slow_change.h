// Finds the rank, machine or link that has slowed down more than the others: compares the newest
// steps of a job with older steps. So it can tell a slow machine from an unequal stage even if all
// ranks of a stage are on one machine, and a slow link from a large exchange. Pure functions.
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
  kMachine,  // several or all workers of a machine compute longer, and none elsewhere
  // Exchanges between two machines take longer, and other exchanges exonerate both or neither.
  kLink,
  kMachineLink,  // exchanges of one machine with others take longer, and none without it
  kLateWorker,   // several exchanges of one worker take longer, and none without it
};

struct SlowChange {
  Change what = Change::kNone;
  int worker = -1;      // the worker, or the first one of the machine
  int peer = -1;        // kLink: the first worker of the other machine
  int num_workers = 0;  // kWorker, kMachine: how many of its workers compute longer
  double times = 1;     // how many times as long as before, relative to the change of the others
  double seconds = 0;  // by which one of its workers, or of these exchanges, takes longer in a step
  double step_times = 1;  // how many times as long a step takes as before; also if `what` is kNone
  // kWorker, kMachine: the same worker or machine is found whichever one of the other machines is
  // left out. So no single other machine can cause the finding by false reports. Always false on
  // two machines.
  bool has_witnesses = false;
};

// What is known of older steps.
struct History {
  absl::Span<const MeasuredStep> before = {};  // to compare with
  std::vector<int> machine_of = {};            // by worker
  // How many times as long a step takes now as it did in an earlier part of the job, also one of
  // which no steps are left, by what the job reported. 0: not known.
  double times_usual = 0;
};

// At least this many older steps tell what is usual.
inline constexpr size_t kOldStepsMin = 4;

// Requires: all steps belong to `graph`; `history.machine_of` has an element for each worker, or is
// empty. Few steps, or no machines: kNone.
SlowChange FindChange(const OperationGraph& graph, absl::Span<const MeasuredStep> steps,
                      const History& history);

}  // namespace megascale::diagnose
