// The device of conformance tests that link this library: a CUDA device of an emulated machine,
// which all tests of the process share.
#include "gpu/device/cuda_device.h"
#include "gpu/device/testing/add_ops.h"
#include "gpu/emulator/emulated_cuda.h"
#include "runtime/device/testing/test_devices.h"

namespace megascale::device {
namespace {

constexpr int kNumDevices = 4;

std::unique_ptr<Device> MakeDevice(uint64_t seed) {
  // Lives until the process ends, as the machine that it emulates.
  static const auto* const machine =
      new emulator::EmulatedMachine({.seed = 7, .num_devices = kNumDevices});
  (void)machine;
  return gpu::MakeCudaDevice({.cuda = emulator::EmulatedCuda(),
                              .images = emulator::EmulatedImages(),
                              .index = static_cast<int>(seed % kNumDevices),
                              .make_ops = &gpu::MakeAddOps,
                              .on_allocate = &emulator::NameDeviceMemory})
      .value();
}

}  // namespace

std::vector<TestDevice> AllDevices() { return {{"Cuda", &MakeDevice}}; }

}  // namespace megascale::device
