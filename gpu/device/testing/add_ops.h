// Operators of a CUDA device for tests of the device itself: AddScaled in fp32 and FillZero. The
// others end the test.
#pragma once

#include <memory>

#include "gpu/device/cuda_device.h"
#include "runtime/ops/ops.h"

namespace megascale::gpu {

std::unique_ptr<ops::Ops> MakeAddOps(const CudaOpsRequest& request);

}  // namespace megascale::gpu
