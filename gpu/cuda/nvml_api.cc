#include "gpu/cuda/nvml_api.h"

#include "absl/strings/str_cat.h"
#include "gpu/cuda/library.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace megascale::cuda {

absl::StatusOr<NvmlApi> LoadNvmlFrom(const std::vector<std::string>& files) {
  ASSIGN_OR_RETURN(
      const Library library,
      Library::Open(
          {.name = "NVML", .wanted = "of the driver (libnvidia-ml.so.1)", .files = files}));
  NvmlApi table;
  RETURN_IF_ERROR(library.Resolve({MEGASCALE_TABLE_SYMBOL(nvmlInit_v2)                       //
                                   MEGASCALE_TABLE_SYMBOL(nvmlDeviceGetHandleByPciBusId_v2)  //
                                   MEGASCALE_TABLE_SYMBOL(nvmlDeviceGetMemoryInfo)}));
  const int result = table.nvmlInit_v2();
  if (result == 0) return table;
  return absl::FailedPreconditionError(absl::StrCat("NVML: nvmlInit_v2 failed with ", result));
}

const NvmlApi* LoadNvml() {
  static const auto* const loaded =
      new absl::StatusOr<NvmlApi>(LoadNvmlFrom({"libnvidia-ml.so.1"}));
  if (loaded->ok()) return &**loaded;
  base::LogWarning(
      absl::StrCat("the free memory of GPUs is unknown: ", loaded->status().message()));
  return nullptr;
}

std::optional<int64_t> FreeBytes(const NvmlApi& nvml, const std::string& bus_id) {
  void* device = nullptr;
  NvmlMemory memory;
  if (nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id.c_str(), &device) != 0) return std::nullopt;
  if (nvml.nvmlDeviceGetMemoryInfo(device, &memory) != 0) return std::nullopt;
  return static_cast<int64_t>(memory.free);
}

}  // namespace megascale::cuda
