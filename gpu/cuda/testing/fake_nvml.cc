// A driver's management library that knows two GPUs of 80 GiB with 3 GiB free. The second one can
// tell nothing but its memory.
#include <cstring>

namespace {
int gpus[2] = {};
constexpr int kNotSupported = 3;
}  // namespace

extern "C" {

struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned int gpu, memory;
};

int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  *device = &gpus[0];
  return std::strcmp(bus_id, "0000:3b:00.0") == 0 ? 0 : 6;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  if (device != &gpus[0] && device != &gpus[1]) return 2;
  *memory = {80ull << 30, 3ull << 30, 77ull << 30};
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  if (index >= 2) return 2;
  *device = &gpus[index];
  return 0;
}
int nvmlDeviceGetUtilizationRates(void* device, Utilization* rates) {
  if (device != &gpus[0]) return kNotSupported;
  *rates = {97, 41};
  return 0;
}
int nvmlDeviceGetTemperature(void* device, int sensor, unsigned int* celsius) {
  if (device != &gpus[0] || sensor != 0) return kNotSupported;
  *celsius = 84;
  return 0;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned int* milliwatts) {
  if (device != &gpus[0]) return kNotSupported;
  *milliwatts = 698'500;
  return 0;
}
int nvmlDeviceGetClockInfo(void* device, int clock, unsigned int* megahertz) {
  if (device != &gpus[0]) return kNotSupported;
  *megahertz = clock == 1 ? 1410 : 2619;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  if (device != &gpus[0]) return kNotSupported;
  *reasons = 0x1 | 0x4 | 0x40;  // idle, power cap, heat
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void* device, int error, int counter, unsigned long long* count) {
  if (device != &gpus[0] || counter != 0) return kNotSupported;
  *count = error == 0 ? 12 : 1;
  return 0;
}

}  // extern "C"
