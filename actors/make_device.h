// How the processes of a job get the device that its ranks compute on. `cli` implements it, because
// it knows all kinds of devices.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "runtime/device/device.h"

namespace megascale::actors {

struct DevicePlace {
  int local_rank = 0;     // the index of the rank among those of its machine
  std::string interface;  // the address that the job's tensors use; empty: one machine
};

// Makes the device that a job asks for. Host processes make the devices of their machine's ranks,
// too, but only read their descriptions. Errors: InvalidArgument, FailedPrecondition - this program
// or this machine cannot make the device. If the job's first preflight has not passed yet, the user
// has to change the job or the machine.
using MakeDevice = std::function<absl::StatusOr<std::unique_ptr<device::Device>>(
    const megascale::job::v1::JobSpec& spec, const DevicePlace& place)>;

}  // namespace megascale::actors
