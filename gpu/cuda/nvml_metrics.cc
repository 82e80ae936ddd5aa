#include "gpu/cuda/nvml_metrics.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu/cuda/library.h"
#include "gpu/cuda/nvml_api.h"
#include "runtime/base/status.h"

namespace megascale::cuda {
namespace {

constexpr unsigned int kGpusMax = 64;
// Numbers of the library's enumerations.
constexpr int kTemperatureOfGpu = 0;
constexpr int kClockOfMultiprocessors = 1;
constexpr int kClockOfMemory = 2;
constexpr int kErrorCorrected = 0;
constexpr int kErrorUncorrected = 1;
constexpr int kSinceDriverWasLoaded = 0;

// Bits of the reasons for low clocks. That a GPU is idle, or that somebody chose its clocks, does
// not count.
constexpr std::pair<unsigned long long, const char*> kThrottles[] = {
    {0x04, "power cap"}, {0x08, "hardware slowdown"}, {0x10, "clocks of other GPUs"},
    {0x20, "heat"},      {0x40, "heat, by hardware"}, {0x80, "power brake"},
};

void AddLoad(const NvmlMetricsApi& nvml, void* device, telemetry::v1::GpuSample* sample) {
  NvmlUtilization rates;
  if (nvml.nvmlDeviceGetUtilizationRates(device, &rates) == 0) {
    sample->set_busy_share(rates.gpu / 100.0);
    sample->set_memory_busy_share(rates.memory / 100.0);
  }
  NvmlMemory memory;
  if (nvml.nvmlDeviceGetMemoryInfo(device, &memory) == 0) {
    sample->set_memory_used_bytes(static_cast<int64_t>(memory.used));
    sample->set_memory_bytes(static_cast<int64_t>(memory.total));
  }
}

void AddHardware(const NvmlMetricsApi& nvml, void* device, telemetry::v1::GpuSample* sample) {
  unsigned int value = 0;
  if (nvml.nvmlDeviceGetTemperature(device, kTemperatureOfGpu, &value) == 0) {
    sample->set_temperature_celsius(value);
  }
  if (nvml.nvmlDeviceGetPowerUsage(device, &value) == 0) sample->set_power_watts(value / 1000.0);
  if (nvml.nvmlDeviceGetClockInfo(device, kClockOfMultiprocessors, &value) == 0) {
    sample->set_core_clock_megahertz(value);
  }
  if (nvml.nvmlDeviceGetClockInfo(device, kClockOfMemory, &value) == 0) {
    sample->set_memory_clock_megahertz(value);
  }
  unsigned long long count = 0;
  if (nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device, &count) == 0) {
    for (const auto& [bit, name] : kThrottles) {
      if ((count & bit) != 0) sample->add_throttled_by(name);
    }
  }
  const auto errors = [&](int kind) {
    return nvml.nvmlDeviceGetTotalEccErrors(device, kind, kSinceDriverWasLoaded, &count) == 0;
  };
  if (errors(kErrorCorrected)) sample->set_corrected_errors(static_cast<int64_t>(count));
  if (errors(kErrorUncorrected)) sample->set_uncorrected_errors(static_cast<int64_t>(count));
}

}  // namespace

absl::StatusOr<NvmlMetricsApi> LoadNvmlMetricsFrom(const std::vector<std::string>& files) {
  ASSIGN_OR_RETURN(
      const Library library,
      Library::Open(
          {.name = "NVML", .wanted = "of the driver (libnvidia-ml.so.1)", .files = files}));
  NvmlMetricsApi table;
  RETURN_IF_ERROR(
      library.Resolve({MEGASCALE_TABLE_SYMBOL(nvmlInit_v2)                                //
                       MEGASCALE_TABLE_SYMBOL(nvmlDeviceGetCount_v2)                      //
                       MEGASCALE_TABLE_SYMBOL(nvmlDeviceGetHandleByIndex_v2)              //
                       MEGASCALE_TABLE_SYMBOL(nvmlDeviceGetUtilizationRates)              //
                       MEGASCALE_TABLE_SYMBOL(nvmlDeviceGetMemoryInfo)                    //
                       MEGASCALE_TABLE_SYMBOL(nvmlDeviceGetTemperature)                   //
                       MEGASCALE_TABLE_SYMBOL(nvmlDeviceGetPowerUsage)                    //
                       MEGASCALE_TABLE_SYMBOL(nvmlDeviceGetClockInfo)                     //
                       MEGASCALE_TABLE_SYMBOL(nvmlDeviceGetCurrentClocksThrottleReasons)  //
                       MEGASCALE_TABLE_SYMBOL(nvmlDeviceGetTotalEccErrors)}));
  const int result = table.nvmlInit_v2();
  if (result == 0) return table;
  return absl::FailedPreconditionError(absl::StrCat("NVML: nvmlInit_v2 failed with ", result));
}

std::vector<telemetry::v1::GpuSample> ReadGpus(const NvmlMetricsApi& nvml) {
  std::vector<telemetry::v1::GpuSample> samples;
  unsigned int count = 0;
  if (nvml.nvmlDeviceGetCount_v2(&count) != 0) return samples;
  for (unsigned int i = 0; i < count && i < kGpusMax; ++i) {
    void* device = nullptr;
    if (nvml.nvmlDeviceGetHandleByIndex_v2(i, &device) != 0) continue;
    telemetry::v1::GpuSample& sample = samples.emplace_back();
    sample.set_index(static_cast<int>(i));
    AddLoad(nvml, device, &sample);
    AddHardware(nvml, device, &sample);
  }
  return samples;
}

}  // namespace megascale::cuda
