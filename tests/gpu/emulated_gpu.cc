#include "gpu/emulator/emulated_gpu.h"

#include "gpu/emulator/emulated_cuda.h"
#include "runtime/base/status.h"
#include "runtime/device/testing/test_devices.h"
#include "tests/gpu/gpu_under_test.h"

namespace megascale {

absl::StatusOr<gpu::GpuUnderTest> gpu::OpenGpuUnderTest() {
  // The emulated machine begins with its first device.
  RETURN_IF_ERROR(emulator::MakeEmulatedGpu({.may_share = true}, /*seed=*/1).status());
  return GpuUnderTest{emulator::EmulatedCuda(), emulator::EmulatedImages()};
}

std::vector<device::TestDevice> device::AllDevices() {
  return {{"Cuda", [](uint64_t seed) {
             return emulator::MakeEmulatedGpu(
                        {.local_rank = static_cast<int>(seed), .may_share = true}, seed)
                 .value();
           }}};
}

}  // namespace megascale
