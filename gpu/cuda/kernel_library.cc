#include "gpu/cuda/kernel_library.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu/cuda/cuda_status.h"
#include "runtime/base/status.h"

namespace megascale::cuda {
namespace {

// What a block may have without asking.
constexpr size_t kSharedBytesFree = size_t{48} << 10;

}  // namespace

Kernel::Kernel(std::string name, cudaKernel_t handle)
    : name_(std::move(name)), handle_(handle), shared_bytes_max_(kSharedBytesFree) {}

absl::StatusOr<std::unique_ptr<KernelLibrary>> KernelLibrary::Load(
    const CudaApi* cuda, absl::Span<const KernelImage> images) {
  std::unique_ptr<KernelLibrary> library(new KernelLibrary(cuda));
  for (const KernelImage& image : images) {
    cudaLibrary_t loaded = nullptr;
    RETURN_IF_ERROR(base::Annotate(
        MEGASCALE_CUDA_CALL(*cuda, cudaLibraryLoadData(&loaded, image.data, nullptr, nullptr, 0,
                                                       nullptr, nullptr, 0)),
        image.name));
    library->libraries_.push_back(loaded);
  }
  return library;
}

KernelLibrary::~KernelLibrary() {
  // A device that has failed cannot unload either; the process is about to end.
  for (const cudaLibrary_t library : libraries_) (void)cuda_.cudaLibraryUnload(library);
}

absl::StatusOr<Kernel*> KernelLibrary::Find(absl::string_view name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = kernels_.find(name);
  if (known != kernels_.end()) return known->second.get();
  std::string key(name);
  for (const cudaLibrary_t library : libraries_) {
    cudaKernel_t handle = nullptr;
    const cudaError_t error = cuda_.cudaLibraryGetKernel(&handle, library, key.c_str());
    if (error == cudaErrorSymbolNotFound) {
      cuda_.cudaGetLastError();
      continue;
    }
    RETURN_IF_ERROR(base::Annotate(ToStatus(cuda_, error, "cudaLibraryGetKernel"), key));
    std::unique_ptr<Kernel>& kernel = kernels_[key];
    kernel.reset(new Kernel(std::move(key), handle));
    return kernel.get();
  }
  return absl::NotFoundError(
      absl::StrCat("no kernel image has ", name, "; this is an error of the build"));
}

absl::Status KernelLibrary::AllowSharedMemory(Kernel* kernel, size_t bytes) {
  const std::lock_guard<std::mutex> lock(kernel->mutex_);
  if (bytes <= kernel->shared_bytes_max_) return absl::OkStatus();
  RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(
      cuda_, cudaFuncSetAttribute(kernel->handle_, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes))));
  kernel->shared_bytes_max_ = bytes;
  return absl::OkStatus();
}

absl::Status KernelLibrary::LaunchWith(cudaStream_t stream, Kernel* kernel,
                                       const LaunchOptions& options, const void* params) {
  RETURN_IF_ERROR(base::Annotate(AllowSharedMemory(kernel, options.shared_bytes), kernel->name()));
  cudaLaunchConfig_t config = {};
  config.gridDim = options.grid;
  config.blockDim = dim3(static_cast<unsigned>(options.threads));
  config.dynamicSmemBytes = options.shared_bytes;
  config.stream = stream;
  void* arguments[] = {const_cast<void*>(params)};
  const cudaError_t error = cuda_.cudaLaunchKernelExC(&config, kernel->handle_, arguments);
  return ToStatus(cuda_, error, kernel->name());
}

}  // namespace megascale::cuda
