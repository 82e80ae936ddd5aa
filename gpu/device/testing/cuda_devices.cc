// The device of tests that link this library: a CUDA device of an emulated machine,
// with the operators of jobs.
#include "gpu/emulator/assembled/emulated_gpu.h"
#include "runtime/device/testing/test_devices.h"

namespace megascale::device {

std::vector<TestDevice> AllDevices() {
  return {{"Cuda", [](uint64_t seed) {
             return emulator::MakeEmulatedGpu(
                        {.local_rank = static_cast<int>(seed), .may_share = true}, seed)
                 .value();
           }}};
}

}  // namespace megascale::device
