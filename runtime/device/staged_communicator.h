// A communicator for memory that neither the host nor other ranks can touch: tensors go through
// pinned host memory, piece by piece, and from there through the host communicator. Results have
// the same bits as there. A call waits for the stream's earlier work, and returns when its result
// was issued; it so keeps the thread of its stream busy, but none of the device's other streams.
//
// Cost: two copies of each tensor between device and host, 2 kStagingBytes of pinned memory.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/device/device.h"

namespace megascale::device {

// What a staged communicator sends, and what it receives, at once; it has pinned memory for each.
constexpr size_t kStagingBytes = size_t{2} << 20;

// All are borrowed. Errors: ResourceExhausted - no pinned memory.
absl::StatusOr<std::unique_ptr<comm::Communicator>> MakeStagedCommunicator(
    Device* device, comm::HostCommunicator* host, stream::Stream* stream);

}  // namespace megascale::device
