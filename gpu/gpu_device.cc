#include "gpu/gpu_device.h"

#include "gpu/assembly.h"
#include "gpu/comm/nccl_environment.h"
#include "runtime/base/status.h"

namespace megascale::gpu {

absl::StatusOr<std::unique_ptr<device::Device>> MakeGpuDevice(const GpuRequest& request) {
  RETURN_IF_ERROR(cuda::SetNcclEnvironment({.ib_timeout = request.nccl_ib_timeout,
                                            .ib_retry_count = request.nccl_ib_retry_count,
                                            .address = request.interface}));
  GpuTables tables = {.images = cuda::KernelImages()};
  ASSIGN_OR_RETURN(tables.cuda, cuda::LoadCuda());
  ASSIGN_OR_RETURN(tables.cublas_lt, cuda::LoadCublasLt());
  if (!request.may_share) {
    ASSIGN_OR_RETURN(tables.nccl, cuda::LoadNccl());
  }
  return AssembleGpuDevice(tables, request);
}

}  // namespace megascale::gpu
