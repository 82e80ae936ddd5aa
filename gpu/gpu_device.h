// The devices of jobs with `device: cuda`. Libraries are opened only when a device is made, so the
// program also runs, and plans such jobs, on machines without CUDA libraries.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/telemetry.pb.h"
#include "runtime/device/device.h"

namespace megascale::gpu {

struct GpuRequest {
  int local_rank = 0;       // index of the rank among the ranks of this machine
  bool may_share = false;   // whether several ranks may use one GPU
  bool is_alone = false;    // whether the job has no other rank, so that it needs no NCCL
  bool allow_tf32 = false;  // see TrainSpec::allow_tf32
  bool uses_graphs = true;  // see JobSpec::enable_cuda_graph
  // For NCCL: the address that its sockets bind, empty on one machine; and FaultSpec's fields.
  std::string interface = {};
  std::optional<int> nccl_ib_timeout = {};
  std::optional<int> nccl_ib_retry_count = {};
  absl::Duration start_timeout = absl::Minutes(2);  // of a group of ranks
  absl::Duration call_timeout = absl::Minutes(2);   // of exchanges without a timeout
};

// Makes the GPU of a rank. Errors: FailedPrecondition - this program was built without CUDA, or the
// machine lacks a library, a driver or a GPU; the message says what is missing, what was wanted and
// what was found.
absl::StatusOr<std::unique_ptr<device::Device>> MakeGpuDevice(const GpuRequest& request);

// Makes a device of each GPU of this machine, for tests of the machine. Empty without an NVIDIA
// driver.
// Errors: FailedPrecondition - there is a driver, but this program cannot use it, for a reason that
// MakeGpuDevice names; Internal - CUDA failed.
absl::StatusOr<std::vector<std::unique_ptr<device::Device>>> MakeAllGpuDevices();

// Returns a sample of each GPU of this machine, for its metrics; empty without an NVIDIA driver.
// Blocking: asks the driver, which may hang.
std::vector<telemetry::v1::GpuSample> ReadGpus();

}  // namespace megascale::gpu
