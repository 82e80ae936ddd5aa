// A communicator for memory that neither the host nor other ranks can touch: tensors go through
// pinned host memory, piece by piece, and from there through the host communicator. Results have
// the same bits as the host communicator's. A call keeps the thread of its stream busy, but none of
// the device's other streams. For each piece that it moves, the host waits once for the stream's
// work. It waits before the exchange, until the piece is in host memory; in Recv, and on the
// receiving side of Broadcast, it waits after the exchange, until the device has read the piece.
// When a call returns, the copy of its result to the device has been issued.
//
// A device that hangs: once it has ended no work of any stream for two thirds of the call's
// timeout, the call fails with Internal, marked as a hang (hang.h), which names the exchange and
// blames this rank, and the other members are told. Abort ends the wait, too. The work stays on the
// stream, so code that gets the error must not wait for the stream.
//
// Cost: two copies of each tensor between device and host, 2 kStagingBytes of pinned memory. A
// group of one rank has neither (solo_communicator.h).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/device/device.h"

namespace megascale::device {

// The most bytes that a staged communicator sends at once, and the most that it receives at once;
// it has this much pinned memory for each.
constexpr size_t kStagingBytes = size_t{2} << 20;

// All are borrowed. When the communicator is destroyed, the stream must have none of its work left.
// Errors: ResourceExhausted - no pinned memory.
absl::StatusOr<std::unique_ptr<comm::Communicator>> MakeStagedCommunicator(
    Device* device, comm::HostCommunicator* host, stream::Stream* stream);

}  // namespace megascale::device
