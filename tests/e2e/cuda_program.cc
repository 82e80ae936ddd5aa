// The program whose jobs with `device: cuda` compute on an emulated GPU, which all ranks of a
// machine share: the shipped kernels' source, run on the host. The seed of the emulator is that in
// MEGASCALE_EMULATOR_SEED (default 1).
#include <cstdint>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "cli/program.h"
#include "gpu/emulator/assembled/emulated_gpu.h"
#include "runtime/device/cpu_device.h"
#include "runtime/job/job_spec.h"

namespace {

absl::StatusOr<std::unique_ptr<megascale::device::Device>> MakeDevice(
    const megascale::job::v1::JobSpec& spec, const megascale::actors::DevicePlace& place) {
  if (spec.device() != megascale::job::v1::DEVICE_CUDA) return megascale::device::MakeCpuDevice();
  uint64_t seed = 1;
  const char* const text = std::getenv("MEGASCALE_EMULATOR_SEED");
  if (text != nullptr) (void)absl::SimpleAtoi(text, &seed);
  return megascale::emulator::MakeEmulatedGpu({.local_rank = place.local_rank,
                                               .may_share = spec.device_sharing(),
                                               .allow_tf32 = spec.train().allow_tf32(),
                                               .uses_graphs = megascale::job::UsesCudaGraphs(spec)},
                                              seed);
}

}  // namespace

int main(int argc, char** argv) { return megascale::cli::RunProgram(argc, argv, &MakeDevice); }
