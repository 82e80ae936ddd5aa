#include "gpu/cuda/cuda_status.h"

#include "absl/strings/str_cat.h"

namespace megascale::cuda {

absl::Status ToStatus(const CudaApi& cuda, cudaError_t error, absl::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  // An error that is not sticky would else be returned by a later call as well.
  cuda.cudaGetLastError();
  const std::string message =
      absl::StrCat(call, ": ", cuda.cudaGetErrorName(error), ": ", cuda.cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(message)
                                            : absl::InternalError(message);
}

}  // namespace megascale::cuda
