// Which GPU the tests of this folder run on: the library that a test links decides. emulated_gpu
// has the emulator's, real_gpu that of this machine. Both also define device::AllDevices(), with
// the same one device.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gpu/cuda/cuda_api.h"
#include "gpu/cuda/kernel_images.h"
#include "runtime/device/device.h"

namespace megascale::gpu {

struct GpuUnderTest {
  const cuda::CudaApi* cuda;
  absl::Span<const cuda::KernelImage> images;
};

// Errors: FailedPrecondition - this machine lacks a library, a driver or a GPU.
absl::StatusOr<GpuUnderTest> OpenGpuUnderTest();

// Makes the device of a rank, which shares the GPU with others. Errors: as OpenGpuUnderTest.
absl::StatusOr<std::unique_ptr<device::Device>> MakeGpuUnderTest(int rank, bool uses_graphs);

}  // namespace megascale::gpu
