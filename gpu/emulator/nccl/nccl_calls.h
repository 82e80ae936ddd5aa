// The exchanges of an emulated NCCL: which bytes each call sends to which rank and receives from
// which rank, and the sums. Private to this folder.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gpu/cuda/nccl_api.h"
#include "gpu/emulator/nccl/nccl_mesh.h"

namespace megascale::emulator {

enum class NcclOperation {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kSend,
  kRecv
};

struct NcclCall {
  NcclOperation operation = NcclOperation::kSend;
  const void* input = nullptr;  // of the device
  void* output = nullptr;
  size_t count = 0;
  ncclDataType_t dtype = ncclFloat32;
  int root = 0;           // or the peer
  void* event = nullptr;  // of the profiler plugin (nccl_events.h)
};

// Runs the calls of one group, all at once. `*outcome` receives how the group ended. Errors:
// InvalidArgument - a call's memory is not the device's.
absl::Status RunNcclCalls(NcclMesh& mesh, absl::Span<const NcclCall> calls, NcclEvents& events,
                          NcclOutcome* outcome);

// Returns the size of an element; 0: the emulator does not have the type.
size_t NcclSizeOf(ncclDataType_t dtype);

}  // namespace megascale::emulator
