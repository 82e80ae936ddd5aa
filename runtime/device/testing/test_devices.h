// The devices of the conformance tests (device_test, communicators_test, those of operators), by
// name. Which they are is the choice of the library that a test links: `test_devices` of this
// folder has the CPU and the strict device, others have one of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/device.h"

namespace megascale::device {

struct TestDevice {
  std::string name;
  std::function<std::unique_ptr<Device>(uint64_t seed)> make;
};

// Returns at least one device.
std::vector<TestDevice> AllDevices();

}  // namespace megascale::device
