// A device's operators for tensors in host memory: each call copies its tensors to the device, runs
// there, and copies them back. So the tests of operators, which make and read tensors on the host,
// hold every device to the same reference.
#pragma once

#include <memory>

#include "runtime/device/device.h"
#include "runtime/ops/ops.h"

namespace megascale::device {

// `num_threads`: as for Device::MakeOps.
std::unique_ptr<ops::Ops> MakeHostedOps(std::unique_ptr<Device> device, tensor::DType compute,
                                        int num_threads);

}  // namespace megascale::device
