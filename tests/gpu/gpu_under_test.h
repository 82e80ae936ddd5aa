// Which GPU the tests of this folder run on: the library that a test links decides. emulated_gpu
// has the emulator's, real_gpu that of this machine. Both also define device::AllDevices(), with
// the same one device.
#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gpu/cuda/cuda_api.h"
#include "gpu/cuda/kernel_images.h"

namespace megascale::gpu {

struct GpuUnderTest {
  const cuda::CudaApi* cuda;
  absl::Span<const cuda::KernelImage> images;
};

// Errors: FailedPrecondition - this machine lacks a library, a driver or a GPU.
absl::StatusOr<GpuUnderTest> OpenGpuUnderTest();

}  // namespace megascale::gpu
