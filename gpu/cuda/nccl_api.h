// The functions of NCCL that the program uses, as a table: see cuda_api.h.
#pragma once

// First: nccl.h includes cuda_runtime.h.
#include "gpu/cuda/cuda_api.h"
// Then the rest.
#include <nccl.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/cuda/library.h"

namespace megascale::cuda {

// clang-format off
#define MEGASCALE_NCCL_FUNCTIONS(_)                                       \
  _(ncclGetVersion) _(ncclGetErrorString) _(ncclGetLastError)             \
  /* communicators */                                                     \
  _(ncclGetUniqueId) _(ncclCommInitRankConfig) _(ncclCommFinalize)        \
  _(ncclCommDestroy) _(ncclCommAbort) _(ncclCommGetAsyncError)            \
  _(ncclCommCount) _(ncclCommUserRank)                                    \
  /* exchanges */                                                         \
  _(ncclAllReduce) _(ncclReduceScatter) _(ncclAllGather)                  \
  _(ncclBroadcast) _(ncclReduce) _(ncclSend) _(ncclRecv)                  \
  _(ncclGroupStart) _(ncclGroupEnd)
// clang-format on

struct NcclApi {
  MEGASCALE_NCCL_FUNCTIONS(MEGASCALE_TABLE_MEMBER)
};

// The oldest supported NCCL, the first for CUDA 13, in the format of ncclGetVersion.
constexpr int kNcclVersionMin = 22700;

// Returns the table of the library on this machine, which it opens at the first call. Errors:
// FailedPrecondition, one line - there is no library, or it is older.
absl::StatusOr<const NcclApi*> LoadNccl();

// Returns the table of the first of `files` that can be opened.
absl::StatusOr<NcclApi> LoadNcclFrom(const std::vector<std::string>& files);

}  // namespace megascale::cuda
