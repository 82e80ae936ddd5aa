// Which ended jobs the driver may forget. Only the record goes: folders, loss logs and checkpoints
// stay. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/driver/driver_state.h"

namespace megascale::driver {

// An ended job is kept while either says so.
struct JobRetention {
  int64_t newest = 1000;                  // so many, by the time of their end; from 0
  absl::Duration age = absl::Hours(168);  // so long after their end; from 0
};

// The ids of jobs that neither keeps, oldest end first. `now` is wall time: it has to outlive
// reboots, and a clock that is hours ahead forgets a record hours early.
// Cost: linear in the jobs; nothing where there are at most `newest` of them.
std::vector<std::string> JobsToForget(const DriverState& state, const JobRetention& retention,
                                      absl::Time now);

}  // namespace megascale::driver
