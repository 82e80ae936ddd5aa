// One injection into a real job on four machines (machines.h), and what `megascale minder watch`
// beside it finds. The job has one paced worker on each machine, all with the same work: Minder
// compares machines that hold the same pipeline stages, and needs at least three of them.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/diagnose/injection.h"

namespace megascale::injection {

// Faults that slow a machine, so that its metrics may show them.
const std::vector<Fault>& SlowingFaults();

struct MinderRun {
  Fault fault = Fault::kCutQuota;           // one of SlowingFaults()
  int victim = 2;                           // machine
  absl::Duration calm = absl::Seconds(30);  // of training before the fault
  absl::Duration every = absl::Seconds(10);
  absl::Duration continuity = absl::Minutes(4);
  absl::Duration deadline = absl::Minutes(6);  // from the fault to the verdict
};

struct MinderReport {
  MinderRun run;
  std::string problem;     // why there is no verdict; "": there is one, or the time was up
  std::string calm_alarm;  // the machine that was named before the fault; "": none
  std::string named;       // the machine that was named first after the fault; "": none
  std::string metric;
  double score = 0;
  absl::Duration after = absl::InfiniteDuration();  // from the fault to the verdict
  // From the fault to the time at which the driver's suspicion says that it began.
  absl::Duration began_after = absl::InfiniteDuration();

  bool is_right() const;
};

MinderReport RunMinder(const MinderRun& run);

// Returns a table in Markdown, a line for each run.
std::string MinderTable(const std::vector<MinderReport>& reports);

}  // namespace megascale::injection
