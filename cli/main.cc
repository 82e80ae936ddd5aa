// The program. Starts no thread before a command runs: driver, agent and local fork first.
#include "cli/program.h"
#include "gpu/gpu_device.h"
#include "runtime/device/cpu_device.h"

namespace {

absl::StatusOr<std::unique_ptr<megascale::device::Device>> MakeDevice(
    const megascale::job::v1::JobSpec& spec, int local_rank) {
  if (spec.device() != megascale::job::v1::DEVICE_CUDA) return megascale::device::MakeCpuDevice();
  return megascale::gpu::MakeGpuDevice({.local_rank = local_rank,
                                        .may_share = spec.device_sharing(),
                                        .allow_tf32 = spec.train().allow_tf32()});
}

}  // namespace

int main(int argc, char** argv) { return megascale::cli::RunProgram(argc, argv, &MakeDevice); }
