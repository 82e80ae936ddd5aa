#include "gpu/cuda/nccl_api.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::cuda {

absl::StatusOr<NcclApi> LoadNcclFrom(const std::vector<std::string>& files) {
  ASSIGN_OR_RETURN(
      const Library library,
      Library::Open({.name = "NCCL", .wanted = "2.27 or newer (libnccl.so.2)", .files = files}));
  NcclApi table;
  RETURN_IF_ERROR(library.Resolve({MEGASCALE_TABLE_SYMBOL(ncclGetVersion)}));
  int version = 0;
  const ncclResult_t result = table.ncclGetVersion(&version);
  RETURN_IF_ERROR(library.CheckVersion(
      result == ncclSuccess && version >= kNcclVersionMin,
      absl::StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100)));
  RETURN_IF_ERROR(library.Resolve({MEGASCALE_NCCL_FUNCTIONS(MEGASCALE_TABLE_SYMBOL)}));
  return table;
}

absl::StatusOr<const NcclApi*> LoadNccl() {
  static const auto* const loaded =
      new absl::StatusOr<NcclApi>(LoadNcclFrom(ToolkitFiles("libnccl.so.2")));
  RETURN_IF_ERROR(loaded->status());
  return &**loaded;
}

}  // namespace megascale::cuda
