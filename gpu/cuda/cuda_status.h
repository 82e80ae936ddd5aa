// CUDA's errors as Status.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gpu/cuda/cuda_api.h"

namespace megascale::cuda {

// Returns OK for cudaSuccess, else a status whose message is "`call`: <name of the error>: <text>".
// cudaErrorMemoryAllocation is ResourceExhausted, every other error Internal.
absl::Status ToStatus(const CudaApi& cuda, cudaError_t error, absl::string_view call);

// Calls a function of the table and returns its error as a Status.
//   RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda, cudaSetDevice(0)));
#define MEGASCALE_CUDA_CALL(table, call) \
  ::megascale::cuda::ToStatus((table), (table).call, MEGASCALE_CUDA_NAME(#call))
#define MEGASCALE_CUDA_NAME(call) \
  ::absl::string_view(call).substr(0, ::absl::string_view(call).find('('))

}  // namespace megascale::cuda
