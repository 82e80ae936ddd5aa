// Shows how far NCCL's calls have come, as HostCommunicator shows its own: from the events that
// NCCL gives to a profiler plugin. The plugin is part of the program: with
// NCCL_PROFILER_PLUGIN=STATIC_PLUGIN NCCL looks for its table in the program itself, which must
// therefore export it (BUILD.bazel does, for the linker), and no file has to be found.
//
// Only what goes over a network is shown: NCCL reports no transfers between GPUs that reach each
// other's memory, and none of calls in a CUDA graph. Of a piece counts as
//   ready: the GPU has made it; transmitted: the network has it; delivered: the network has
//   confirmed it; received: it has come. Pieces to come are not counted, so all of them may be
//   delivered while the GPU does not make the next one.
//
// Cost: NCCL's proxy thread takes a lock that nobody holds for long, and writes a few words into
// shared memory, for each piece (up to some MiB).
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
    comm::CallProgress* progress = nullptr;  // outlives the object; null: nothing is shown
    std::string name;                        // the communicator's in NCCL: ncclConfig_t::commName
    int rank = 0;                            // in the communicator
    std::vector<int> world_ranks;            // by rank in the communicator
  };
  // Requires: in this process no other object has this name and rank. NCCL's communicator is made
  // after it, and may end after it.
  explicit NcclProgress(Options options);
  ~NcclProgress();
  NcclProgress(const NcclProgress&) = delete;
  NcclProgress& operator=(const NcclProgress&) = delete;

  // What NCCL launches from now on belongs to `call`.
  void Launch(const Call& call);

  // What the plugin shares with the object. Private to profiler_plugin.cc.
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
