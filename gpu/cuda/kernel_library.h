// Loads kernel images onto a device and launches their kernels by name.
//
//   ASSIGN_OR_RETURN(auto library, KernelLibrary::Load(&cuda, KernelImages()));
//   ASSIGN_OR_RETURN(Kernel* norm, library->Find("NormForwardF32"));
//   RETURN_IF_ERROR(library->Launch(stream, norm, {.grid = dim3(rows), .threads = 256}, params));
//
// Threads: any; the library's device must be the current device of each.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gpu/cuda/cuda_api.h"
#include "gpu/cuda/kernel_images.h"

namespace megascale::cuda {

// A kernel of a library, which owns it.
class Kernel {
 public:
  const std::string& name() const { return name_; }

 private:
  friend class KernelLibrary;
  Kernel(std::string name, cudaKernel_t handle);

  const std::string name_;
  const cudaKernel_t handle_;
  std::mutex mutex_;
  size_t shared_bytes_max_;  // limit set on the device so far; guarded by mutex_
};

struct LaunchOptions {
  dim3 grid = dim3(1);      // blocks
  int threads = 256;        // of a block
  size_t shared_bytes = 0;  // dynamic shared memory of a block
};

class KernelLibrary {
 public:
  // Loads `images`. `images` and `cuda` must outlive the library. Errors: Internal - the device
  // refused an image; the message has the image's name.
  static absl::StatusOr<std::unique_ptr<KernelLibrary>> Load(const CudaApi* cuda,
                                                             absl::Span<const KernelImage> images);
  // Requires: no kernel of the library runs.
  ~KernelLibrary();
  KernelLibrary(const KernelLibrary&) = delete;
  KernelLibrary& operator=(const KernelLibrary&) = delete;

  // Returns the kernel of this name. Errors: NotFound - no image has it. Cost: a map's look-up.
  absl::StatusOr<Kernel*> Find(absl::string_view name);

  // Launches a kernel whose one parameter is a struct by value. The struct is copied before the
  // call returns. Errors: Internal - the device failed before, or refused the shape.
  template <typename Params>
  absl::Status Launch(cudaStream_t stream, Kernel* kernel, const LaunchOptions& options,
                      const Params& params) {
    return LaunchWith(stream, kernel, options, &params);
  }
  template <typename Params>
  absl::Status Launch(cudaStream_t stream, absl::string_view name, const LaunchOptions& options,
                      const Params& params) {
    const absl::StatusOr<Kernel*> kernel = Find(name);
    return kernel.ok() ? LaunchWith(stream, *kernel, options, &params) : kernel.status();
  }
  // The same for a caller that does not know the type of the struct.
  absl::Status LaunchWith(cudaStream_t stream, Kernel* kernel, const LaunchOptions& options,
                          const void* params);

 private:
  explicit KernelLibrary(const CudaApi* cuda) : cuda_(*cuda) {}
  // Makes the device allow a kernel's blocks more shared memory than the default, if they need it.
  absl::Status AllowSharedMemory(Kernel* kernel, size_t bytes);

  const CudaApi& cuda_;
  std::vector<cudaLibrary_t> libraries_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Kernel>, std::less<>> kernels_;  // guarded by mutex_
};

}  // namespace megascale::cuda
