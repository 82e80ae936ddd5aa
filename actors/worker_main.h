// The worker process: one rank of one attempt, on one device.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "runtime/device/device.h"

namespace megascale::actors {

// Makes the device that a job asks for. Errors: InvalidArgument - this program cannot; the user has
// to change the job.
using MakeDevice = std::function<absl::StatusOr<std::unique_ptr<device::Device>>(
    const megascale::job::v1::JobSpec& spec)>;

// Runs until the attempt ends for this rank. Returns the process's exit status: 0 - finished, or
// stopped as asked; 1 - failed, and reported over the link. `link_fd` is the inherited socket to
// the agent, whose first message is the Assignment.
int RunWorker(int link_fd, const MakeDevice& make_device);

}  // namespace megascale::actors
