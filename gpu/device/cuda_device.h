// An NVIDIA GPU as a device of the runtime: implements runtime/device/device.h through CUDA.
//
//   ASSIGN_OR_RETURN(const cuda::CudaApi* cuda, cuda::LoadCuda());
//   ASSIGN_OR_RETURN(auto device, MakeCudaDevice({.cuda = cuda, .images = cuda::KernelImages(),
//                                                 .index = 0, .make_ops = &MakeMyOps}));
//
// Making the device does not access the GPU and takes none of its memory. The first allocation,
// stream or operator does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gpu/cuda/cuda_api.h"
#include "gpu/cuda/kernel_images.h"
#include "gpu/cuda/kernel_library.h"
#include "gpu/device/cuda_stream.h"
#include "runtime/device/device.h"

namespace megascale::gpu {

// The arguments of `make_ops`. What they point to outlives the operators.
struct CudaOpsRequest {
  const cuda::CudaApi* cuda = nullptr;
  cuda::KernelLibrary* kernels = nullptr;
  CudaStream* stream = nullptr;
  tensor::DType compute = tensor::DType::kF32;
};

struct CudaDeviceOptions {
  const cuda::CudaApi* cuda = nullptr;              // must outlive the device
  absl::Span<const cuda::KernelImage> images = {};  // must outlive it, too
  int index = 0;                                    // as CUDA counts devices, from 0
  // Number of ranks that use this GPU, each through its own Device; for Description::num_ranks.
  int num_ranks = 1;
  // Appended to Description::numerics: everything else that decides the bits, such as ", NCCL
  // 2.28.9".
  std::string numerics = "";
  // Whether the work of operators is launched as CUDA graphs (gpu/graphs).
  bool uses_graphs = false;
  // Makes the operators of a stream. Required if MakeOps is called.
  std::function<std::unique_ptr<ops::Ops>(const CudaOpsRequest& request)> make_ops = nullptr;
  // For Device::product_tuner; null: operators need no tuner.
  std::shared_ptr<device::ProductTuner> product_tuner = nullptr;
  // Makes communicators; null: through pinned memory and the host's communicator
  // (runtime/device/staged_communicator.h).
  std::function<absl::StatusOr<std::unique_ptr<comm::Communicator>>(
      device::Device* device, comm::HostCommunicator* host, CudaStream* stream)>
      make_communicator = nullptr;
  // Returns how much memory of the GPU at a PCI address is free; nullopt: unknown. Null: always
  // unknown.
  std::function<std::optional<int64_t>(const std::string& bus_id)> free_bytes = nullptr;
  // Called with each block of device memory and its name; for tests.
  std::function<void(const void* block, absl::string_view name)> on_allocate = nullptr;
};

// Makes the device. Errors: FailedPrecondition - this machine has no device of that index, or the
// device is older than Ampere (compute capability 8.0); the message says what was found. Internal -
// CUDA failed.
absl::StatusOr<std::unique_ptr<device::Device>> MakeCudaDevice(const CudaDeviceOptions& options);

}  // namespace megascale::gpu
