#include <cstdio>
#include <cstdlib>

#include "gpu/gpu_device.h"
#include "runtime/base/status.h"
#include "runtime/device/testing/test_devices.h"
#include "tests/gpu/gpu_under_test.h"

namespace megascale {

absl::StatusOr<gpu::GpuUnderTest> gpu::OpenGpuUnderTest() {
  ASSIGN_OR_RETURN(const cuda::CudaApi* const cuda, cuda::LoadCuda());
  return GpuUnderTest{cuda, cuda::KernelImages()};
}

absl::StatusOr<std::unique_ptr<device::Device>> gpu::MakeGpuUnderTest(int rank, bool uses_graphs) {
  return gpu::MakeGpuDevice({.local_rank = rank, .may_share = true, .uses_graphs = uses_graphs});
}

std::vector<device::TestDevice> device::AllDevices() {
  return {{"Cuda", [](uint64_t /*seed*/) {
             auto made = gpu::MakeGpuDevice({.may_share = true});
             if (!made.ok()) {
               std::fprintf(stderr, "%s\n", std::string(made.status().message()).c_str());
               std::exit(1);
             }
             return std::move(made).value();
           }}};
}

}  // namespace megascale
