// Shows the progress of NCCL's calls, as HostCommunicator shows the progress of its calls. It uses
// the events that NCCL reports to a profiler plugin. The plugin is part of the program. With
// NCCL_PROFILER_PLUGIN=STATIC_PLUGIN, NCCL looks for the plugin's table in the program itself
// instead of a file, so the program must export the table (by a linker option in BUILD.bazel).
//
// It shows only what goes over a network: NCCL reports neither transfers between GPUs that reach
// each other's memory nor calls in a CUDA graph. The states of a piece are
//   ready: the GPU has made it;
//   transmitted: the network has it;
//   delivered: the network has confirmed it;
//   received: it has arrived.
// Future pieces are not counted, so all counted pieces may be delivered while the GPU does not make
// the next one.
//
// Cost: for each piece (up to some MiB), NCCL's proxy thread takes a lock that nobody holds for
// long, and writes a few words into shared memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/comm/call_watch.h"
#include "gpu/cuda/nccl_profiler.h"
#include "runtime/comm/call_progress.h"

namespace megascale::cuda {

// The calls of one communicator, for the plugin. Threads: any.
class NcclProgress {
 public:
  struct Options {
    comm::CallProgress* progress = nullptr;  // outlives the object; null: shows nothing
    std::string name;                        // the communicator's in NCCL: ncclConfig_t::commName
    int rank = 0;                            // in the communicator
    std::vector<int> world_ranks;            // by rank in the communicator
  };
  // Requires: in this process no other object has this name and rank. The NCCL communicator must be
  // made after this object, and may be destroyed after it.
  explicit NcclProgress(Options options);
  ~NcclProgress();
  NcclProgress(const NcclProgress&) = delete;
  NcclProgress& operator=(const NcclProgress&) = delete;

  // From now on, calls that NCCL launches belong to `call`.
  void Launch(const Call& call);

  // State that the plugin shares with the object. Private to profiler_plugin.cc.
  class Shared;

 private:
  const std::shared_ptr<Shared> shared_;
};

}  // namespace megascale::cuda

// The plugin, under the names by which NCCL looks for it.
extern "C" {
extern const megascale::cuda::ProfilerTableV4 ncclProfiler_v4;
extern const megascale::cuda::ProfilerTableV5 ncclProfiler_v5;
}
