// A whole cluster in one process and in virtual time, from a seed: the production driver (shell,
// core, failure detector, event log, loss log) and the production cores of agents and workers,
// operators, faults, and checkers that watch. Start here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/world.h"

namespace megascale::sim {

// What happens to the agent that reports the steps of a job.
enum class ReporterFault {
  kNone,
  kStops,    // its process stands still for 3 s
  kCutOff,   // the driver cannot reach it for 3 s
  kBothCut,  // nor its deputy
  kLost,     // its machine is lost
};

// What happens to the link between two machines, which both reach the driver.
enum class LinkFault { kNone, kOneWay, kOtherWay, kBothWays };

struct SimulationOptions {
  uint64_t seed = 1;
  bool trace = false;  // print every line of the trace to standard output
  bool calm = false;   // there are no faults
  // In a calm run: the driver is killed once, early, and is started again after this time. Zero: it
  // is not killed.
  absl::Duration driver_away = absl::ZeroDuration();
  // The driver's log is copied early, and after this time the driver is killed and goes on with the
  // copy. Zero: it is not. Checks only what may be expected of a restored log.
  absl::Duration restore_after = absl::ZeroDuration();
  // With restore_after: for this long nobody says that the log is a copy. The driver must stop.
  absl::Duration undeclared = absl::ZeroDuration();
  // The driver is of an older version until then; InfiniteDuration: to the end. Zero: it is of the
  // present version, or as the seed draws in a storm. With restore_after: the copy is made just
  // before the upgrade, and the driver that goes on with it is of the older version again.
  absl::Duration upgrade_after = absl::ZeroDuration();
  // In a calm run: happens once, early, to one of the jobs that have ranks on several machines.
  ReporterFault reporter_fault = ReporterFault::kNone;
  // In a calm run: happens for good to one link, after `link_fails_after`.
  LinkFault link_fault = LinkFault::kNone;
  absl::Duration link_fails_after = absl::ZeroDuration();
  // In a calm run: an agent that has ranks is asked to end, once, early.
  bool drain = false;
  // In a storm: agents of several numerics versions, if the seed draws them.
  bool draws_numerics = true;
  // Jobs with evaluations, if the seed draws them.
  bool draws_evaluations = true;
  Tampering tampering = {};  // breaks the product on purpose
  bool keep_going = false;   // go on after a violation, to see its consequences
  std::string stop_at = {};  // with keep_going: ends at a violation of this invariant
};

struct Outcome {
  std::vector<Violation> violations;  // the first of each invariant, in the order of time
  uint64_t hash = 0;                  // hash of the trace
  int64_t num_lines = 0;              // lines of the trace
  absl::Duration virtual_time;
  // Counts by which a test checks that the storm caused enough trouble.
  int64_t num_jobs = 0;
  int64_t num_succeeded = 0;
  int64_t num_attempts = 0;     // of all jobs
  int64_t num_from_memory = 0;  // attempts after the first, by the source of their restore point
  int64_t num_from_storage = 0;
  int64_t num_reporter_faults = 0;
  int64_t num_reads_refused = 0;  // failed reads of ranks whose machine could not read
  int64_t num_not_met = 0;        // attempts after one whose ranks did not meet at the store
  int64_t num_outdated = 0;       // drivers that stopped because agents knew a later log
  int64_t num_failed_links = 0;   // attempts after one that a link ended
  int64_t num_drained = 0;        // agents that ended because their jobs had left
  int64_t num_refused = 0;        // drivers that did not start because their log was damaged
  bool had_old_driver = false;
  bool had_numerics = false;    // there were agents of several numerics versions
  int64_t num_tested_late = 0;  // machines tested after the driver that their agent joined
  int64_t num_in_rounds = 0;    // machines that have exchanged with several others at once
};

// Runs until every job has ended after the last fault, until an invariant is violated, or until the
// virtual time limit for this. Determinism: the same options give the same outcome.
Outcome Simulate(const SimulationOptions& options);

}  // namespace megascale::sim
