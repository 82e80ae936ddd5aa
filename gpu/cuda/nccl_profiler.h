// The parts of NCCL's interface for profiler plugins that we use, declared here because NCCL's
// header for them is not in the toolkit. NCCL finds a table by its name, "ncclProfiler_v4" or
// "ncclProfiler_v5", and calls the table's functions. NCCL describes events in its own structs;
// this header declares only their first members.
//
// Source: the plugin documentation in NCCL's repository (ext-profiler/README.md), versions 2.27 (4)
// and 2.28 (5).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/nccl_api.h"

namespace megascale::cuda {

// Types of events, as bits: a plugin asks for several types, and an event has one.
namespace profiler_event {
inline constexpr uint64_t kCollective = 1 << 1;  // a call was launched
inline constexpr uint64_t kMessage = 1 << 2;     // a send or receive was launched
inline constexpr uint64_t kTransport = 1 << 3;   // what one channel moves to or from one peer
inline constexpr uint64_t kStep = 1 << 4;        // one piece of a transport
}  // namespace profiler_event

// The state of a piece.
enum class ProfilerState : int {
  kSendWaitsForGpu = 8,
  kSendPosted = 9,  // the network has it; `ProfilerStateArgs::bytes`: its size
  kReceivePosted = 10,
  kReceived = 11,  // `ProfilerStateArgs::bytes`: its size
  kReceiveWaitsForGpu = 12,
  kSendWaitsForPeer = 20,  // the GPU has made it; the peer or the network has no room yet
};

struct ProfilerEvent {
  // In version 4 only the lowest byte is set; the other seven are undefined.
  uint64_t type;
  void* parent;  // what the plugin returned for the event that this one is part of; may be null
  int rank;      // in the communicator
  union {
    struct {
      pid_t pid;  // process whose plugin made the parent, and in which pointers are valid
      uint8_t channel;
      int peer;  // rank in the communicator
      int num_steps;
      int step_bytes;  // of a piece; the last one may be smaller
      int is_send;
    } transport;
    struct {
      int step;
    } step;
  };
};

union ProfilerStateArgs {
  size_t bytes;
};

using ProfilerLog = void (*)(int level, unsigned long flags, const char* file, int line,
                             const char* format, ...);

// The functions that are the same in both versions. All must return ncclSuccess. Only `init` may
// fail; then NCCL continues without the plugin.
template <typename Init>
struct ProfilerTable {
  const char* name;
  Init init;
  ncclResult_t (*start_event)(void* context, void** handle, ProfilerEvent* event);
  ncclResult_t (*stop_event)(void* handle);
  ncclResult_t (*record_state)(void* handle, int state, ProfilerStateArgs* args);
  ncclResult_t (*finalize)(void* context);
};

// `name`: ncclConfig_t::commName. `events`: here the plugin sets the bits of the events that it
// wants.
using ProfilerTableV4 =
    ProfilerTable<ncclResult_t (*)(void** context, int* events, const char* name, uint64_t id,
                                   int num_nodes, int num_ranks, int rank, ProfilerLog log)>;
using ProfilerTableV5 =
    ProfilerTable<ncclResult_t (*)(void** context, uint64_t id, int* events, const char* name,
                                   int num_nodes, int num_ranks, int rank, ProfilerLog log)>;

}  // namespace megascale::cuda
