// The host process reads and writes files for the workers of one machine: the preflight, the data
// loader and the persister of checkpoints. It can be restarted without losing a snapshot.
#pragma once

#include "actors/make_device.h"

namespace megascale::actors {

// Runs until the link to the agent closes. A process for a preflight alone ends once it has
// reported the result. Returns the process's exit status. `link_fd` is the inherited socket to the
// agent, whose first message is the HostAssignment.
int RunHost(int link_fd, const MakeDevice& make_device);

}  // namespace megascale::actors
