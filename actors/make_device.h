// How the processes of a job get the device that its ranks compute on: `cli` knows the kinds.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "runtime/device/device.h"

namespace megascale::actors {

// Makes the device that a job asks for. Host processes make one, too, and only ask what it is.
// Errors: InvalidArgument - this program cannot; the user has to change the job.
using MakeDevice = std::function<absl::StatusOr<std::unique_ptr<device::Device>>(
    const megascale::job::v1::JobSpec& spec)>;

}  // namespace megascale::actors
