#include "gpu/ops/stream_launcher.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gpu/cuda/cuda_status.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/layout/cuda_memory.h"

namespace megascale::gpu {
namespace {

// The first workspace; most operators of most models need less.
constexpr size_t kWorkspaceBytes = layout::kCudaKernelBytes;

class StreamLauncher final : public Launcher {
 public:
  StreamLauncher(const cuda::CudaApi* cuda, cuda::KernelLibrary* kernels, cudaStream_t stream,
                 std::function<void(const absl::Status&)> on_error)
      : cuda_(*cuda), kernels_(*kernels), stream_(stream), on_error_(std::move(on_error)) {}
  ~StreamLauncher() override { Free(); }

  void FillZero(void* data, size_t bytes) override {
    if (bytes == 0 || has_failed_) return;
    LookAt(MEGASCALE_CUDA_CALL(cuda_, cudaMemsetAsync(data, 0, bytes, stream_)));
  }

  void* Workspace(size_t bytes) override {
    if (bytes <= workspace_bytes_) return workspaces_.back();
    // Those before stay: cudaFree waits for the whole device, and so for exchanges whose peers may
    // wait for this rank.
    const size_t wanted = std::max({bytes, 2 * workspace_bytes_, kWorkspaceBytes});
    void* workspace = nullptr;
    const absl::Status status = MEGASCALE_CUDA_CALL(cuda_, cudaMalloc(&workspace, wanted));
    LookAt(base::Annotate(status, absl::StrCat("workspace of ", wanted, " bytes")));
    if (!status.ok()) return nullptr;
    workspaces_.push_back(workspace);
    workspace_bytes_ = wanted;
    return workspace;
  }

 protected:
  void LaunchKernel(const char* kernel, const LaunchShape& shape, const void* params,
                    size_t /*params_bytes*/) override {
    // After an error the arguments may name a workspace that is not there. An illegal access would
    // hide the error itself, on every stream.
    if (has_failed_) return;
    const cuda::LaunchOptions options = {
        .grid = dim3(static_cast<unsigned>(shape.grid[0]), static_cast<unsigned>(shape.grid[1]),
                     static_cast<unsigned>(shape.grid[2])),
        .threads = shape.threads,
        .shared_bytes = shape.shared_bytes};
    LookAt(kernels_.LaunchWith(stream_, Find(kernel), options, params));
  }

 private:
  cuda::Kernel* Find(absl::string_view name) {
    const auto known = found_.find(name);
    if (known != found_.end()) return known->second;
    const absl::StatusOr<cuda::Kernel*> kernel = kernels_.Find(name);
    MEGASCALE_CHECK_MSG(kernel.ok(), kernel.status().ToString());
    return found_[std::string(name)] = *kernel;
  }

  void LookAt(const absl::Status& status) {
    if (!status.ok() && !std::exchange(has_failed_, true)) on_error_(status);
  }

  void Free() {
    if (workspaces_.empty()) return;
    // Work that uses them may still run. A device that has failed frees nothing.
    (void)cuda_.cudaStreamSynchronize(stream_);
    for (void* workspace : workspaces_) (void)cuda_.cudaFree(workspace);
  }

  const cuda::CudaApi& cuda_;
  cuda::KernelLibrary& kernels_;
  const cudaStream_t stream_;
  const std::function<void(const absl::Status&)> on_error_;
  std::map<std::string, cuda::Kernel*, std::less<>> found_;
  std::vector<void*> workspaces_;  // the last one is in use
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
