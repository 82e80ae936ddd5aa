// An NVIDIA GPU as a device of the runtime. Where a rank computes: runtime/device/device.h says
// what a device promises; this one keeps it through CUDA.
//
//   ASSIGN_OR_RETURN(const cuda::CudaApi* cuda, cuda::LoadCuda());
//   ASSIGN_OR_RETURN(auto device, MakeCudaDevice({.cuda = cuda, .images = cuda::KernelImages(),
//                                                 .index = 0, .make_ops = &MakeMyOps}));
//
// The GPU itself is not touched, and none of its memory taken, before the first memory, stream or
// operator is made.
#pragma once

#include <functional>
#include <memory>
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

// What the maker of operators is given; all outlive the operators.
struct CudaOpsRequest {
  const cuda::CudaApi* cuda = nullptr;
  cuda::KernelLibrary* kernels = nullptr;
  CudaStream* stream = nullptr;
  tensor::DType compute = tensor::DType::kF32;
};

struct CudaDeviceOptions {
  const cuda::CudaApi* cuda = nullptr;              // must outlive the device
  absl::Span<const cuda::KernelImage> images = {};  // as well
  int index = 0;                                    // as CUDA counts devices, from 0
  // Ranks that use this GPU, each with a device of its own: for Description::num_ranks.
  int num_ranks = 1;
  // What else decides the bits, such as ", NCCL 2.28.9": joins Description::numerics.
  std::string numerics = "";
  // Makes the operators of a stream. Required where MakeOps is called.
  std::function<std::unique_ptr<ops::Ops>(const CudaOpsRequest& request)> make_ops = nullptr;
  // Makes communicators; null: through pinned memory and the host's communicator
  // (runtime/device/staged_communicator.h).
  std::function<absl::StatusOr<std::unique_ptr<comm::Communicator>>(
      device::Device* device, comm::HostCommunicator* host, CudaStream* stream)>
      make_communicator = nullptr;
  // Is told of each block of device memory and its name; for tests.
  std::function<void(const void* block, absl::string_view name)> on_allocate = nullptr;
};

// Errors: FailedPrecondition - this machine has no device of that index, or one that is older than
// Ampere (compute capability 8.0); the message has what was found. Internal - CUDA failed.
absl::StatusOr<std::unique_ptr<device::Device>> MakeCudaDevice(const CudaDeviceOptions& options);

}  // namespace megascale::gpu
