#include "gpu/emulator/emulated_gpu.h"

#include "gpu/assembly.h"
#include "gpu/emulator/cublas_lt/emulated_cublas_lt.h"
#include "gpu/emulator/emulated_cuda.h"

namespace megascale::emulator {
namespace {

gpu::GpuTables MakeTables(uint64_t seed) {
  new EmulatedMachine({.seed = seed});  // lives as long as the process
  static const auto* const cublas_lt = new cuda::CublasLtApi(
      MakeCublasLt([](cudaStream_t stream, const std::function<void()>& work) {
        // A stream that cannot take work has failed, and says so itself.
        (void)IssueWork(stream, [work] {
          work();
          return absl::OkStatus();
        });
      }));
  return {.cuda = EmulatedCuda(),
          .cublas_lt = cublas_lt,
          .images = EmulatedImages(),
          .on_allocate = &NameDeviceMemory};
}

}  // namespace

absl::StatusOr<std::unique_ptr<device::Device>> MakeEmulatedGpu(const gpu::GpuRequest& request,
                                                                uint64_t seed) {
  static const gpu::GpuTables tables = MakeTables(seed);
  return gpu::AssembleGpuDevice(tables, request);
}

}  // namespace megascale::emulator
