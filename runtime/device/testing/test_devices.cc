#include "runtime/device/testing/test_devices.h"

#include "runtime/device/cpu_device.h"
#include "runtime/device/testing/strict_device.h"

namespace megascale::device {

std::vector<TestDevice> AllDevices() {
  return {{"Cpu", [](uint64_t /*seed*/) { return MakeCpuDevice(); }},
          {"Strict", [](uint64_t seed) { return StrictDevice::Create({.seed = seed}); }}};
}

}  // namespace megascale::device
