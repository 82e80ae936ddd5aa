// A CPU with a stream and a window, for tests that need no more of a device.
#pragma once

#include <memory>

#include "runtime/device/cpu_device.h"
#include "runtime/device/host_window.h"

namespace megascale::device {

struct TestWindow {
  std::unique_ptr<Device> device = MakeCpuDevice();
  std::unique_ptr<stream::Stream> stream = device->MakeStream("test").value();
  HostWindow window{device.get(), stream.get()};
};

}  // namespace megascale::device
