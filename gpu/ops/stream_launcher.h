// The Launcher of a CUDA stream.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "gpu/cuda/cuda_api.h"
#include "gpu/cuda/kernel_library.h"
#include "gpu/graphs/stream_work.h"
#include "gpu/ops/launcher.h"

namespace megascale::gpu {

// Launches the kernels of `kernels` as a part of a stream's `work`. `cuda`, `kernels` and `work`
// must outlive the launcher. `on_error` receives the first error of the launcher itself, such as a
// lack of device memory for a workspace; then the results of the stream's work are invalid.
// Threads: only the stream's thread.
std::unique_ptr<Launcher> MakeStreamLauncher(
    const cuda::CudaApi* cuda, cuda::KernelLibrary* kernels, StreamWork* work,
    std::function<void(const absl::Status& status)> on_error);

}  // namespace megascale::gpu
