// The worker process: one rank of one attempt, on one device.
#pragma once

#include "actors/make_device.h"

namespace megascale::actors {

// Runs until the attempt ends for this rank. Returns the process's exit status: 0 - finished, or
// stopped as asked; 1 - failed, and reported over the link. `link_fd` is the inherited socket to
// the agent, whose first message is the Assignment.
int RunWorker(int link_fd, const MakeDevice& make_device);

}  // namespace megascale::actors
