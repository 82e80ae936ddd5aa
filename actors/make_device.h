// How the processes of a job get the device that its ranks compute on: `cli` knows the kinds.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "runtime/device/device.h"

namespace megascale::actors {

// Makes the device that a job asks for. `local_rank`: the index of the rank among those of its
// machine. Host processes make that of the last one, and only ask what it is. Errors:
// InvalidArgument, FailedPrecondition - this program or this machine cannot; the user has to change
// the job or the machine.
using MakeDevice = std::function<absl::StatusOr<std::unique_ptr<device::Device>>(
    const megascale::job::v1::JobSpec& spec, int local_rank)>;

}  // namespace megascale::actors
