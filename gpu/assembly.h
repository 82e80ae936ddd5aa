// Puts a GPU together from its parts: tables of functions, kernels, operators, communicators. For
// gpu_device.cc, which uses the libraries of this machine, and for tests, which use emulated
// libraries.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gpu/cuda/cublas_lt_api.h"
#include "gpu/cuda/cuda_api.h"
#include "gpu/cuda/kernel_images.h"
#include "gpu/cuda/nccl_api.h"
#include "gpu/cuda/nvml_api.h"
#include "gpu/gpu_device.h"
#include "gpu/ops/products/device_table.h"
#include "runtime/device/device.h"

namespace megascale::gpu {

// Everything here must outlive the devices.
struct GpuTables {
  const cuda::CudaApi* cuda = nullptr;
  const cuda::CublasLtApi* cublas_lt = nullptr;
  // Opens NCCL, for a rank that exchanges with others through it. Empty: ranks exchange through
  // pinned host memory.
  std::function<absl::StatusOr<const cuda::NcclApi*>()> open_nccl = nullptr;
  const cuda::NvmlApi* nvml = nullptr;  // null: the free memory of GPUs is unknown
  absl::Span<const cuda::KernelImage> images = {};
  // Measured algorithms of products, by kind of GPU; see ops/products/device_table.h.
  absl::Span<const DeviceTableFile> device_tables = {};
  // For tests: see CudaDeviceOptions::on_allocate.
  std::function<void(const void* block, absl::string_view name)> on_allocate = nullptr;
};

// Errors: as MakeGpuDevice.
absl::StatusOr<std::unique_ptr<device::Device>> AssembleGpuDevice(const GpuTables& tables,
                                                                  const GpuRequest& request);

}  // namespace megascale::gpu
