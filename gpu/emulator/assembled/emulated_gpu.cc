#include "gpu/emulator/assembled/emulated_gpu.h"

#include "gpu/assembly.h"
#include "gpu/emulator/cublas_lt/emulated_cublas_lt.h"
#include "gpu/emulator/emulated_cuda.h"
#include "gpu/emulator/nccl/emulated_nccl.h"

namespace megascale::emulator {

const gpu::GpuTables& EmulatedTables() {
  static const auto* const cublas_lt = new cuda::CublasLtApi(
      MakeCublasLt([](cudaStream_t stream, const std::function<void()>& work) {
        // A stream that cannot take work has failed, and says so itself.
        (void)IssueWork(stream, [work] {
          work();
          return absl::OkStatus();
        });
      }));
  static const auto* const tables = new gpu::GpuTables{.cuda = EmulatedCuda(),
                                                       .cublas_lt = cublas_lt,
                                                       .images = EmulatedImages(),
                                                       .on_allocate = &NameDeviceMemory};
  return *tables;
}

absl::StatusOr<std::unique_ptr<device::Device>> MakeEmulatedGpu(const gpu::GpuRequest& request,
                                                                uint64_t seed) {
  // Lives as long as the process.
  [[gnu::used]] static const auto* const machine = new EmulatedMachine({.seed = seed});
  return gpu::AssembleGpuDevice(EmulatedTables(), request);
}

absl::StatusOr<std::unique_ptr<device::Device>> MakeEmulatedNcclGpu(const gpu::GpuRequest& request,
                                                                    uint64_t seed) {
  static const gpu::GpuTables tables = [&] {
    // These live as long as the process.
    [[gnu::used]] static const auto* const machine =
        new EmulatedMachine({.seed = seed,
                             .num_devices = kNumNcclGpus,
                             .has_process_per_device = true,
                             .copies_last = true});
    gpu::GpuTables made = EmulatedTables();
    [[gnu::used]] static const auto* const nccl =
        new EmulatedNccl({.in_progress_polls = 1, .holds_device = true});
    made.open_nccl = [] { return &EmulatedNccl::api(); };
    return made;
  }();
  return gpu::AssembleGpuDevice(tables, request);
}

}  // namespace megascale::emulator
