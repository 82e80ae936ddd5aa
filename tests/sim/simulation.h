// A whole cluster in one process and in virtual time, from a seed: the production driver (shell,
// core, failure detector, event log, loss log) and the production cores of agents and workers,
// operators, faults, and checkers that watch. Start here.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/sim/world.h"

namespace megascale::sim {

struct SimulationOptions {
  uint64_t seed = 1;
  bool trace = false;        // every line of the trace goes to standard output
  bool calm = false;         // nothing breaks
  Tampering tampering = {};  // breaks the product on purpose
  bool keep_going = false;   // after a violation, for what else follows from it
};

struct Outcome {
  std::vector<Violation> violations;  // the first of each invariant, in the order of time
  uint64_t hash = 0;                  // of everything that happened
  int64_t num_lines = 0;              // of the trace
  absl::Duration virtual_time;
  // What was seen, so that a test can tell that a storm was one.
  int64_t num_jobs = 0;
  int64_t num_succeeded = 0;
  int64_t num_attempts = 0;     // of all jobs
  int64_t num_from_memory = 0;  // attempts after the first, by where they started
  int64_t num_from_storage = 0;
};

// Runs until every job has ended after the last fault, until an invariant does not hold, or until
// the virtual time in which that must be is over. Determinism: the same options give the same
// outcome.
Outcome Simulate(const SimulationOptions& options);

}  // namespace megascale::sim
