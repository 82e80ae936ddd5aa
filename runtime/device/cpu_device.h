// The CPU as a device: memory is the host's, work is done when the call that issues it returns, and
// communicators use tensors where they lie.
#pragma once

#include <memory>

#include "runtime/device/device.h"

namespace megascale::device {

// Operators are those of ops::MakeCpuOps, or the float64 reference for F64.
std::unique_ptr<Device> MakeCpuDevice();

}  // namespace megascale::device
