#include "gpu/cuda/cublas_lt_api.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::cuda {

absl::StatusOr<CublasLtApi> LoadCublasLtFrom(const std::vector<std::string>& files) {
  ASSIGN_OR_RETURN(
      const Library library,
      Library::Open(
          {.name = "cuBLASLt", .wanted = "13.0 or newer (libcublasLt.so.13)", .files = files}));
  CublasLtApi table;
  RETURN_IF_ERROR(library.Resolve({MEGASCALE_TABLE_SYMBOL(cublasLtGetVersion)}));
  const size_t version = table.cublasLtGetVersion();
  RETURN_IF_ERROR(library.CheckVersion(version >= kCublasLtVersionMin,
                                       absl::StrCat(version / 10000, ".", version % 10000 / 100)));
  RETURN_IF_ERROR(library.Resolve({MEGASCALE_CUBLAS_LT_FUNCTIONS(MEGASCALE_TABLE_SYMBOL)}));
  return table;
}

absl::StatusOr<const CublasLtApi*> LoadCublasLt() {
  static const auto* const loaded =
      new absl::StatusOr<CublasLtApi>(LoadCublasLtFrom(ToolkitFiles("libcublasLt.so.13")));
  RETURN_IF_ERROR(loaded->status());
  return &**loaded;
}

}  // namespace megascale::cuda
