// The Launcher of a CUDA stream, and the operators of a device made with it.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "gpu/cuda/cuda_api.h"
#include "gpu/cuda/kernel_library.h"
#include "gpu/ops/launcher.h"

namespace megascale::gpu {

// Launches the kernels of `kernels` on `stream`. All must outlive it. `on_error` receives the first
// error, such as a launch that the device refused or a workspace that it has no memory for: the
// stream's work is then worth nothing. Threads: one, the stream's.
std::unique_ptr<Launcher> MakeStreamLauncher(
    const cuda::CudaApi* cuda, cuda::KernelLibrary* kernels, cudaStream_t stream,
    std::function<void(const absl::Status& status)> on_error);

}  // namespace megascale::gpu
