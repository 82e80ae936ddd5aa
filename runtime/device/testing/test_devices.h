// The devices of the conformance tests, by name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/cpu_device.h"
#include "runtime/device/testing/strict_device.h"

namespace megascale::device {

struct TestDevice {
  std::string name;
  std::function<std::unique_ptr<Device>(uint64_t seed)> make;
};

inline std::vector<TestDevice> AllDevices() {
  return {{"Cpu", [](uint64_t /*seed*/) { return MakeCpuDevice(); }},
          {"Strict", [](uint64_t seed) { return StrictDevice::Create({.seed = seed}); }}};
}

}  // namespace megascale::device
