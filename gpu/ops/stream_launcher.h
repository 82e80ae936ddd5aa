// The Launcher of a CUDA stream, and the operators of a device made with it.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "gpu/cuda/cuda_api.h"
#include "gpu/cuda/kernel_library.h"
#include "gpu/graphs/stream_work.h"
#include "gpu/ops/launcher.h"

namespace megascale::gpu {

// Launches the kernels of `kernels` as a part of a stream's `work`. All must outlive it. `on_error`
// receives the first error of its own, such as a workspace that the device has no memory for: the
// stream's work is then worth nothing. Threads: one, the stream's.
std::unique_ptr<Launcher> MakeStreamLauncher(
    const cuda::CudaApi* cuda, cuda::KernelLibrary* kernels, StreamWork* work,
    std::function<void(const absl::Status& status)> on_error);

}  // namespace megascale::gpu
