#include "gpu/ops/stream_launcher.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu/cuda/cuda_status.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::gpu {
namespace {

// The first workspace; most operators of most models need less.
constexpr size_t kWorkspaceBytes = size_t{16} << 20;

class StreamLauncher final : public Launcher {
 public:
  StreamLauncher(const cuda::CudaApi* cuda, cuda::KernelLibrary* kernels, cudaStream_t stream,
                 std::function<void(const absl::Status&)> on_error)
      : cuda_(*cuda), kernels_(*kernels), stream_(stream), on_error_(std::move(on_error)) {}
  ~StreamLauncher() override { Free(); }

  void FillZero(void* data, size_t bytes) override {
    if (bytes == 0) return;
    LookAt(MEGASCALE_CUDA_CALL(cuda_, cudaMemsetAsync(data, 0, bytes, stream_)));
  }

  void* Workspace(size_t bytes) override {
    if (bytes <= workspace_bytes_) return workspace_;
    Free();
    const size_t wanted = std::max(bytes, kWorkspaceBytes);
    const absl::Status status = MEGASCALE_CUDA_CALL(cuda_, cudaMalloc(&workspace_, wanted));
    LookAt(base::Annotate(status, absl::StrCat("workspace of ", wanted, " bytes")));
    if (status.ok()) workspace_bytes_ = wanted;
    return workspace_;
  }

 protected:
  void LaunchKernel(const char* kernel, const LaunchShape& shape, const void* params,
                    size_t /*params_bytes*/) override {
    const cuda::LaunchOptions options = {
        .grid = dim3(static_cast<unsigned>(shape.grid[0]), static_cast<unsigned>(shape.grid[1]),
                     static_cast<unsigned>(shape.grid[2])),
        .threads = shape.threads,
        .shared_bytes = shape.shared_bytes};
    LookAt(kernels_.LaunchWith(stream_, Find(kernel), options, params));
  }

 private:
  // By the address of the name, which is a literal: no look-up of strings in a step.
  cuda::Kernel* Find(const char* name) {
    cuda::Kernel*& found = found_[name];
    if (found == nullptr) {
      const absl::StatusOr<cuda::Kernel*> kernel = kernels_.Find(name);
      MEGASCALE_CHECK_MSG(kernel.ok(), kernel.status().ToString());
      found = *kernel;
    }
    return found;
  }

  void LookAt(const absl::Status& status) {
    if (!status.ok() && !std::exchange(has_failed_, true)) on_error_(status);
  }

  void Free() {
    if (workspace_ == nullptr) return;
    // Work that uses it may still run.
    LookAt(MEGASCALE_CUDA_CALL(cuda_, cudaStreamSynchronize(stream_)));
    LookAt(MEGASCALE_CUDA_CALL(cuda_, cudaFree(workspace_)));
    workspace_ = nullptr;
    workspace_bytes_ = 0;
  }

  const cuda::CudaApi& cuda_;
  cuda::KernelLibrary& kernels_;
  const cudaStream_t stream_;
  const std::function<void(const absl::Status&)> on_error_;
  std::map<const char*, cuda::Kernel*> found_;
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  bool has_failed_ = false;
};

}  // namespace

std::unique_ptr<Launcher> MakeStreamLauncher(const cuda::CudaApi* cuda,
                                             cuda::KernelLibrary* kernels, cudaStream_t stream,
                                             std::function<void(const absl::Status&)> on_error) {
  return std::make_unique<StreamLauncher>(cuda, kernels, stream, std::move(on_error));
}

}  // namespace megascale::gpu
