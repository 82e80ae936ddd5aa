#include "gpu/cuda/cuda_api.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::cuda {

std::string CudaVersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

absl::StatusOr<CudaApi> LoadCudaFrom(const std::vector<std::string>& files) {
  ASSIGN_OR_RETURN(const Library library,
                   Library::Open({.name = "the CUDA runtime",
                                  .wanted = "13.0 or newer (libcudart.so.13)",
                                  .files = files}));
  CudaApi table;
  // The version first: an old library lacks functions as well, and the version says why.
  RETURN_IF_ERROR(library.Resolve({MEGASCALE_TABLE_SYMBOL(cudaRuntimeGetVersion)}));
  int version = 0;
  const cudaError_t error = table.cudaRuntimeGetVersion(&version);
  RETURN_IF_ERROR(library.CheckVersion(error == cudaSuccess && version >= kCudaVersionMin,
                                       CudaVersionText(version)));
  RETURN_IF_ERROR(library.Resolve({MEGASCALE_CUDA_FUNCTIONS(MEGASCALE_TABLE_SYMBOL)}));
  return table;
}

absl::Status CheckCudaDriver(const CudaApi& cuda) {
  int version = 0;
  const cudaError_t error = cuda.cudaDriverGetVersion(&version);
  if (error == cudaSuccess && version >= kCudaVersionMin) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("device: cuda needs an NVIDIA driver for CUDA ",
                   CudaVersionText(kCudaVersionMin), " or newer (580); found ",
                   version == 0 ? "none" : absl::StrCat("one for CUDA ", CudaVersionText(version)),
                   "; install a newer driver"));
}

absl::StatusOr<const CudaApi*> LoadCuda() {
  static const auto* const loaded =
      new absl::StatusOr<CudaApi>(LoadCudaFrom(ToolkitFiles("libcudart.so.13")));
  RETURN_IF_ERROR(loaded->status());
  RETURN_IF_ERROR(CheckCudaDriver(**loaded));
  return &**loaded;
}

}  // namespace megascale::cuda
