// Refuses a submit whose ranks would need more connections than the machines allow. Pure.
#pragma once

#include "absl/status/status.h"
#include "controlplane/driver/core/driver_state.h"

namespace megascale::driver {

// Checks the connections of a new job's ranks to other machines: their descriptors
// (Resources.descriptors) and the memory of their rings (Resources.memory_bytes), on the nodes that
// the job would get if no other job had slots. Nodes that have too little are left out, and the
// next ones are looked at. OK if the nodes tell no limits or offer too few slots for the job: it
// then waits, and preflights decide. Errors: FailedPrecondition - the nodes that have enough offer
// too few slots; names the first node that has not, and the group, members and sum of a rank.
// InvalidArgument - the specification cannot be run. Cost: bounded, so that a job that needs a rare
// choice of nodes is left to the preflights.
absl::Status CheckExchanges(const DriverState& state,
                            const megascale::driver::v1::JobSubmitted& submit);

}  // namespace megascale::driver
