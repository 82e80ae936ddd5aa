#include "gpu/gpu_device.h"

#include <stdlib.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu/assembly.h"
#include "gpu/comm/nccl_environment.h"
#include "gpu/cuda/cuda_status.h"
#include "gpu/cuda/nvml_metrics.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace megascale::gpu {
namespace {

constexpr char kDriverFile[] = "/dev/nvidiactl";  // there is a driver where this is

// Sets what CUDA reads when it is opened, unless the user has. Kernels that are loaded at their
// first launch would wait for the device, and so for exchanges whose peers may wait for this rank.
// Streams that share one of eight queues would wait for each other.
void SetCudaEnvironment() {
  ::setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
}

absl::StatusOr<GpuTables> LoadTables() {  // without NCCL
  GpuTables tables = {.nvml = cuda::LoadNvml(),
                      .images = cuda::KernelImages(),
                      .device_tables = DeviceTableFiles()};
  ASSIGN_OR_RETURN(tables.cuda, cuda::LoadCuda());
  ASSIGN_OR_RETURN(tables.cublas_lt, cuda::LoadCublasLt());
  return tables;
}

}  // namespace

absl::StatusOr<std::unique_ptr<device::Device>> MakeGpuDevice(const GpuRequest& request) {
  SetCudaEnvironment();
  RETURN_IF_ERROR(cuda::SetNcclEnvironment({.ib_timeout = request.nccl_ib_timeout,
                                            .ib_retry_count = request.nccl_ib_retry_count,
                                            .address = request.interface}));
  ASSIGN_OR_RETURN(GpuTables tables, LoadTables());
  tables.open_nccl = &cuda::LoadNccl;
  return AssembleGpuDevice(tables, request);
}

absl::StatusOr<std::vector<std::unique_ptr<device::Device>>> MakeAllGpuDevices() {
  std::vector<std::unique_ptr<device::Device>> devices;
  if (::access(kDriverFile, F_OK) != 0) return devices;
  SetCudaEnvironment();
  ASSIGN_OR_RETURN(GpuTables tables, LoadTables());
  int count = 0;
  RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(*tables.cuda, cudaGetDeviceCount(&count)));
  if (count > 1) {
    const auto nccl = cuda::LoadNccl();
    if (nccl.ok()) {
      tables.open_nccl = &cuda::LoadNccl;
    } else {
      base::LogWarning(absl::StrCat("GPUs are tested without NCCL: ", nccl.status().message()));
    }
  }
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(devices.emplace_back(), AssembleGpuDevice(tables, {.local_rank = i}));
  }
  return devices;
}

std::vector<telemetry::v1::GpuSample> ReadGpus() {
  if (::access(kDriverFile, F_OK) != 0) return {};
  static const auto* const nvml = new absl::StatusOr<cuda::NvmlMetricsApi>([] {
    auto loaded = cuda::LoadNvmlMetricsFrom({"libnvidia-ml.so.1"});
    if (!loaded.ok()) {
      base::LogWarning(absl::StrCat("what GPUs do is unknown: ", loaded.status().message()));
    }
    return loaded;
  }());
  if (!nvml->ok()) return {};
  return cuda::ReadGpus(**nvml);
}

}  // namespace megascale::gpu
