// Which ended jobs and lost nodes the driver may forget. Only the driver's record is deleted: a
// job's folder, loss log and checkpoints stay. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/driver/core/driver_state.h"

namespace megascale::driver {

// An ended job is kept as long as at least one of the first two rules keeps it, and within the
// limit of bytes.
struct JobRetention {
  int64_t newest = 1000;                  // keeps the N jobs that ended last; N >= 0
  absl::Duration age = absl::Hours(168);  // keeps jobs that ended less than this ago; >= 0
  // The maximum bytes of the records of all ended jobs. Of a job with 12,288 ranks the record has
  // about 0.5 MB, of a small one 2 KB. Beyond it those that ended first are forgotten.
  size_t bytes = size_t{256} << 20;
};

// Returns the ids of the jobs to forget, in the order in which they ended. `now`: the time of the
// log (log_clock.h). Cost: linear in the size of the ended jobs, without copies.
std::vector<std::string> JobsToForget(const DriverState& state, const JobRetention& retention,
                                      absl::Time now);

// A node that was lost for longer than this is forgotten. Names that never come back, such as those
// of pods, would otherwise fill the state for ever.
inline constexpr absl::Duration kLostNodeAge = absl::Hours(24);
// The same of a node in quarantine, which may come back from a repair. Its quarantine is forgotten
// with it; a node that joins later is tested, unless the driver tests no machines.
inline constexpr absl::Duration kLostInQuarantineAge = absl::Hours(30 * 24);

// Returns the ids of the nodes that were lost longer ago than these ages, have nothing of a job,
// and keep no decision of an operator (evicted, spare). `now`: as above.
std::vector<std::string> NodesToForget(const DriverState& state, absl::Time now);

}  // namespace megascale::driver
