// What a program has in place of gpu_device.cc that was built where the CUDA toolkit is not.
#include "gpu/gpu_device.h"

namespace megascale::gpu {

absl::StatusOr<std::unique_ptr<device::Device>> MakeGpuDevice(const GpuRequest& /*request*/) {
  return absl::FailedPreconditionError(
      "device: cuda: this program was built without CUDA; build it where the CUDA 13 toolkit is "
      "installed (CUDA_HOME, default /usr/local/cuda), or use device = cpu");
}

absl::StatusOr<std::vector<std::unique_ptr<device::Device>>> MakeAllGpuDevices() {
  return std::vector<std::unique_ptr<device::Device>>();
}

std::vector<telemetry::v1::GpuSample> ReadGpus() { return {}; }

}  // namespace megascale::gpu
