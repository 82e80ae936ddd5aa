// What NCCL reads from the process's environment: the job's limits and its network.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace megascale::cuda {

struct NcclEnvironment {
  // FaultSpec's fields in proto/job.proto, with their meaning; empty: as the environment has it.
  std::optional<int> ib_timeout;      // NCCL_IB_TIMEOUT
  std::optional<int> ib_retry_count;  // NCCL_IB_RETRY_CNT
  // The address of the job's interface ("10.0.0.5"), which NCCL's sockets bind; empty: as the
  // environment has it, and a job on one machine needs none.
  std::string address;  // NCCL_SOCKET_IFNAME, by the name of its interface
};

// Sets the variables; and, unless the user has, NCCL_PROFILER_PLUGIN: NCCL's progress is shown by
// profiler_plugin.h, or with "none" not at all. Requires: NCCL is not open (LoadNccl), and no other
// thread uses the environment. Errors: InvalidArgument - no interface of this machine has the
// address.
absl::Status SetNcclEnvironment(const NcclEnvironment& environment);

}  // namespace megascale::cuda
