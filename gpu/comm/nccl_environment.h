// Settings that NCCL reads from the process's environment: the job's limits and its network.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace megascale::cuda {

struct NcclEnvironment {
  // These have the meaning of FaultSpec's fields in proto/job.proto; empty: the environment's value
  // stays.
  std::optional<int> ib_timeout;      // NCCL_IB_TIMEOUT
  std::optional<int> ib_retry_count;  // NCCL_IB_RETRY_CNT
  // The address of the job's interface ("10.0.0.5"), which NCCL's sockets bind; empty: the
  // environment's value stays. A job on one machine needs no address.
  std::string address;  // NCCL_SOCKET_IFNAME, by the name of its interface
};

// Sets these variables. Unless the user has set NCCL_PROFILER_PLUGIN, also sets it, so that
// profiler_plugin.h shows NCCL's progress; a user sets it to "none" to show nothing. Requires: NCCL
// is not open yet (LoadNccl), and no other thread uses the environment. Errors: InvalidArgument -
// no interface of this machine has the address.
absl::Status SetNcclEnvironment(const NcclEnvironment& environment);

}  // namespace megascale::cuda
