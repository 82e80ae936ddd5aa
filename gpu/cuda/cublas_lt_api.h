// The functions of cuBLASLt that the program uses, as a table: see cuda_api.h.
#pragma once

#include <cublasLt.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/cuda/library.h"

namespace megascale::cuda {

// clang-format off
#define MEGASCALE_CUBLAS_LT_FUNCTIONS(_)                                                    \
  _(cublasLtCreate) _(cublasLtDestroy) _(cublasLtGetVersion)                                \
  _(cublasLtGetStatusName) _(cublasLtGetStatusString)                                       \
  _(cublasLtMatmul)                                                                         \
  _(cublasLtMatmulDescCreate) _(cublasLtMatmulDescDestroy)                                  \
  _(cublasLtMatmulDescSetAttribute) _(cublasLtMatmulDescGetAttribute)                       \
  _(cublasLtMatrixLayoutCreate) _(cublasLtMatrixLayoutDestroy)                              \
  _(cublasLtMatrixLayoutSetAttribute) _(cublasLtMatrixLayoutGetAttribute)                   \
  _(cublasLtMatmulPreferenceCreate) _(cublasLtMatmulPreferenceDestroy)                      \
  _(cublasLtMatmulPreferenceSetAttribute) _(cublasLtMatmulPreferenceGetAttribute)           \
  _(cublasLtMatmulAlgoGetHeuristic) _(cublasLtMatmulAlgoGetIds) _(cublasLtMatmulAlgoInit)   \
  _(cublasLtMatmulAlgoCheck) _(cublasLtMatmulAlgoCapGetAttribute)                           \
  _(cublasLtMatmulAlgoConfigSetAttribute) _(cublasLtMatmulAlgoConfigGetAttribute)
// clang-format on

struct CublasLtApi {
  MEGASCALE_CUBLAS_LT_FUNCTIONS(MEGASCALE_TABLE_MEMBER)
};

// The oldest supported cuBLASLt, in the format of cublasLtGetVersion.
constexpr size_t kCublasLtVersionMin = 130000;

// Returns the table of the library on this machine, which it opens at the first call. Errors:
// FailedPrecondition, one line - there is no library, or it is older.
absl::StatusOr<const CublasLtApi*> LoadCublasLt();

// Returns the table of the first of `files` that can be opened.
absl::StatusOr<CublasLtApi> LoadCublasLtFrom(const std::vector<std::string>& files);

}  // namespace megascale::cuda
