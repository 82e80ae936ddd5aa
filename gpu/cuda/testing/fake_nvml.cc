// A driver's management library that knows one GPU, of 80 GiB with 3 GiB free.
#include <cstring>

namespace {
int gpu = 0;
}  // namespace

extern "C" {

struct Memory {
  unsigned long long total, free, used;
};

int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  *device = &gpu;
  return std::strcmp(bus_id, "0000:3b:00.0") == 0 ? 0 : 6;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  if (device != &gpu) return 2;
  *memory = {80ull << 30, 3ull << 30, 77ull << 30};
  return 0;
}

}  // extern "C"
