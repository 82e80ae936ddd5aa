// The functions of the NVIDIA driver's management library that tell what GPUs do, and their values
// as samples. The toolkit may lack the library's header, so the few types and numbers are declared
// here. This table is separate from nvml_api.h's, so that a library that lacks one of these
// functions can still tell the free memory. Threads: any. Blocking: the library asks the driver.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/telemetry.pb.h"

namespace megascale::cuda {

// nvmlUtilization_t: percent of the library's last sampling period.
struct NvmlUtilization {
  unsigned int gpu = 0, memory = 0;
};
struct NvmlMemory;  // nvml_api.h

// Functions return 0 for success, and another number if the GPU cannot tell. A device is an opaque
// pointer.
struct NvmlMetricsApi {
  int (*nvmlInit_v2)() = nullptr;
  int (*nvmlDeviceGetCount_v2)(unsigned int* count) = nullptr;
  int (*nvmlDeviceGetHandleByIndex_v2)(unsigned int index, void** device) = nullptr;
  int (*nvmlDeviceGetUtilizationRates)(void* device, NvmlUtilization* rates) = nullptr;
  int (*nvmlDeviceGetMemoryInfo)(void* device, NvmlMemory* memory) = nullptr;
  int (*nvmlDeviceGetTemperature)(void* device, int sensor, unsigned int* celsius) = nullptr;
  int (*nvmlDeviceGetPowerUsage)(void* device, unsigned int* milliwatts) = nullptr;
  int (*nvmlDeviceGetClockInfo)(void* device, int clock, unsigned int* megahertz) = nullptr;
  int (*nvmlDeviceGetCurrentClocksThrottleReasons)(void* device,
                                                   unsigned long long* reasons) = nullptr;
  int (*nvmlDeviceGetTotalEccErrors)(void* device, int error, int counter,
                                     unsigned long long* count) = nullptr;
};

// Opens the first of `files` that can be opened, and initialises it. Errors: FailedPrecondition,
// one line.
absl::StatusOr<NvmlMetricsApi> LoadNvmlMetricsFrom(const std::vector<std::string>& files);

// Returns a sample of each GPU, by index.
std::vector<telemetry::v1::GpuSample> ReadGpus(const NvmlMetricsApi& nvml);

}  // namespace megascale::cuda
