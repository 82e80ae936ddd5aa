#include "gpu/gpu_device.h"

#include "gpu/assembly.h"
#include "runtime/base/status.h"

namespace megascale::gpu {

absl::StatusOr<std::unique_ptr<device::Device>> MakeGpuDevice(const GpuRequest& request) {
  GpuTables tables = {.images = cuda::KernelImages()};
  ASSIGN_OR_RETURN(tables.cuda, cuda::LoadCuda());
  ASSIGN_OR_RETURN(tables.cublas_lt, cuda::LoadCublasLt());
  return AssembleGpuDevice(tables, request);
}

}  // namespace megascale::gpu
