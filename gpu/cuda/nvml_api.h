// The functions of the NVIDIA driver's management library that tell how much of a GPU's memory is
// free. CUDA's own cudaMemGetInfo would first make a context, which takes hundreds of MiB of that
// memory. The toolkit may lack the library's header, so the few types are declared here.
//
//   const NvmlApi* nvml = LoadNvml();           // null: this machine has no such library
//   if (nvml != nullptr) free_bytes = FreeBytes(*nvml, "0000:3b:00.0");
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace megascale::cuda {

// nvmlMemory_t
struct NvmlMemory {
  unsigned long long total = 0, free = 0, used = 0;
};

// Functions return 0 for success. A device is an opaque pointer.
struct NvmlApi {
  int (*nvmlInit_v2)() = nullptr;
  int (*nvmlDeviceGetHandleByPciBusId_v2)(const char* bus_id, void** device) = nullptr;
  int (*nvmlDeviceGetMemoryInfo)(void* device, NvmlMemory* memory) = nullptr;
};

// Returns the table of the driver's library, which it opens and initialises at the first call.
// Returns null if that fails; then the free memory is unknown.
const NvmlApi* LoadNvml();
// The same from the first of `files` that can be opened. Errors: FailedPrecondition, one line.
absl::StatusOr<NvmlApi> LoadNvmlFrom(const std::vector<std::string>& files);

// Returns the free memory of the GPU at a PCI address, as cudaDeviceGetPCIBusId writes it; nullopt:
// the library does not know that GPU.
std::optional<int64_t> FreeBytes(const NvmlApi& nvml, const std::string& bus_id);

}  // namespace megascale::cuda
