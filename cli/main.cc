// The program. Starts no thread before a command runs: driver, agent and local fork first.
#include "cli/program.h"
#include "gpu/gpu_device.h"
#include "runtime/device/cpu_device.h"
#include "runtime/job/deadlines.h"
#include "runtime/job/job_spec.h"

namespace {

absl::StatusOr<std::unique_ptr<megascale::device::Device>> MakeDevice(
    const megascale::job::v1::JobSpec& spec, const megascale::actors::DevicePlace& place) {
  if (spec.device() != megascale::job::v1::DEVICE_CUDA) return megascale::device::MakeCpuDevice();
  megascale::gpu::GpuRequest request = {.local_rank = place.local_rank,
                                        .may_share = spec.device_sharing(),
                                        .is_alone = megascale::job::WorldSize(spec) == 1,
                                        .allow_tf32 = spec.train().allow_tf32(),
                                        .uses_graphs = megascale::job::UsesCudaGraphs(spec),
                                        .interface = place.interface};
  const auto& fault = spec.fault();
  // The failure detector would find a group that does not start later, and blame any of its ranks.
  request.start_timeout = megascale::job::DeadlinesOf(fault).start * megascale::job::kNextDeadline;
  request.call_timeout = megascale::job::ToDuration(fault.progress_timeout());
  if (fault.has_nccl_ib_timeout()) request.nccl_ib_timeout = fault.nccl_ib_timeout();
  if (fault.has_nccl_ib_retry_count()) request.nccl_ib_retry_count = fault.nccl_ib_retry_count();
  return megascale::gpu::MakeGpuDevice(request);
}

}  // namespace

int main(int argc, char** argv) {
  return megascale::cli::RunProgram(argc, argv, &MakeDevice, &megascale::gpu::MakeAllGpuDevices,
                                    &megascale::gpu::ReadGpus);
}
