#include "gpu/emulator/assembled/emulated_gpu.h"

#include "gpu/emulator/emulated_cuda.h"
#include "runtime/base/status.h"
#include "tests/gpu/gpu_under_test.h"

namespace megascale {

absl::StatusOr<gpu::GpuUnderTest> gpu::OpenGpuUnderTest() {
  // The emulated machine begins with its first device.
  RETURN_IF_ERROR(emulator::MakeEmulatedGpu({.may_share = true}, /*seed=*/1).status());
  return GpuUnderTest{emulator::EmulatedCuda(), emulator::EmulatedImages()};
}

absl::StatusOr<std::unique_ptr<device::Device>> gpu::MakeGpuUnderTest(int rank, bool uses_graphs) {
  return emulator::MakeEmulatedGpu(
      {.local_rank = rank, .may_share = true, .uses_graphs = uses_graphs}, /*seed=*/1);
}

}  // namespace megascale
