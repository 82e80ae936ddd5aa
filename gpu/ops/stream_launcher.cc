#include "gpu/ops/stream_launcher.h"

#include <algorithm>
#include <array>
#include <cstddef>
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

// The arguments of calls (StreamWork::Call).
struct Fill {
  const cuda::CudaApi* cuda;
  void* data;
  size_t bytes;
};
absl::Status CallFill(const void* arguments, cudaStream_t stream) {
  const Fill& fill = *static_cast<const Fill*>(arguments);
  return MEGASCALE_CUDA_CALL(*fill.cuda, cudaMemsetAsync(fill.data, 0, fill.bytes, stream));
}

// The kernel's own argument follows.
struct KernelLaunch {
  cuda::KernelLibrary* kernels;
  cuda::Kernel* kernel;
  std::array<int, 3> grid;
  int threads;
  size_t shared_bytes;
};
absl::Status CallKernel(const void* arguments, cudaStream_t stream) {
  const KernelLaunch& launch = *static_cast<const KernelLaunch*>(arguments);
  const cuda::LaunchOptions options = {
      .grid = dim3(static_cast<unsigned>(launch.grid[0]), static_cast<unsigned>(launch.grid[1]),
                   static_cast<unsigned>(launch.grid[2])),
      .threads = launch.threads,
      .shared_bytes = launch.shared_bytes};
  return launch.kernels->LaunchWith(stream, launch.kernel, options, StreamWork::MoreOf(launch));
}

class StreamLauncher final : public Launcher {
 public:
  StreamLauncher(const cuda::CudaApi* cuda, cuda::KernelLibrary* kernels, StreamWork* work,
                 std::function<void(const absl::Status&)> on_error)
      : cuda_(*cuda), kernels_(*kernels), work_(*work), on_error_(std::move(on_error)) {}
  ~StreamLauncher() override {
    // A device that has failed frees nothing.
    if (!workspaces_.empty()) work_.Finish();
    for (void* workspace : workspaces_) (void)cuda_.cudaFree(workspace);
  }

  void FillZero(void* data, size_t bytes) override {
    if (bytes == 0 || has_failed_) return;
    work_.Add(&CallFill, Fill{.cuda = &cuda_, .data = data, .bytes = bytes});
  }

  void* Workspace(size_t bytes) override {
    if (bytes <= workspace_bytes_) return workspaces_.back();
    // Those before stay: cudaFree waits for the whole device, and so for exchanges whose peers may
    // wait for this rank.
    const size_t wanted = std::max({bytes, 2 * workspace_bytes_, kWorkspaceBytes});
    void* workspace = nullptr;
    const absl::Status status = MEGASCALE_CUDA_CALL(cuda_, cudaMalloc(&workspace, wanted));
    if (!status.ok()) {
      if (!std::exchange(has_failed_, true)) {
        on_error_(base::Annotate(status, absl::StrCat("workspace of ", wanted, " bytes")));
      }
      return nullptr;
    }
    workspaces_.push_back(workspace);
    workspace_bytes_ = wanted;
    return workspace;
  }

 protected:
  void LaunchKernel(const char* kernel, const LaunchShape& shape, const void* params,
                    size_t params_bytes) override {
    // After an error the arguments may name a workspace that is not there. An illegal access would
    // hide the error itself, on every stream.
    if (has_failed_) return;
    work_.AddWith(&CallKernel,
                  KernelLaunch{.kernels = &kernels_,
                               .kernel = Find(kernel),
                               .grid = shape.grid,
                               .threads = shape.threads,
                               .shared_bytes = shape.shared_bytes},
                  {static_cast<const char*>(params), params_bytes});
  }

 private:
  cuda::Kernel* Find(absl::string_view name) {
    const auto known = found_.find(name);
    if (known != found_.end()) return known->second;
    const absl::StatusOr<cuda::Kernel*> kernel = kernels_.Find(name);
    MEGASCALE_CHECK_MSG(kernel.ok(), kernel.status().ToString());
    return found_[std::string(name)] = *kernel;
  }

  const cuda::CudaApi& cuda_;
  cuda::KernelLibrary& kernels_;
  StreamWork& work_;
  const std::function<void(const absl::Status&)> on_error_;
  std::map<std::string, cuda::Kernel*, std::less<>> found_;
  std::vector<void*> workspaces_;  // the last one is in use
  size_t workspace_bytes_ = 0;
  bool has_failed_ = false;
};

}  // namespace

std::unique_ptr<Launcher> MakeStreamLauncher(const cuda::CudaApi* cuda,
                                             cuda::KernelLibrary* kernels, StreamWork* work,
                                             std::function<void(const absl::Status&)> on_error) {
  return std::make_unique<StreamLauncher>(cuda, kernels, work, std::move(on_error));
}

}  // namespace megascale::gpu
