// The communicator of a group on GPUs: NCCL, with the deadlines and the errors of
// comm::Communicator. Calls only enqueue an exchange, which runs on the stream after the earlier
// work. A thread of the communicator watches the exchanges, and ends them when one fails.
//
//   ASSIGN_OR_RETURN(auto communicator, MakeNcclCommunicator({.nccl = nccl, .cuda = cuda,
//                                                             .host = host, .stream = stream}));
//   RETURN_IF_ERROR(communicator->AllReduce(gradients, {.instruction_id = 7}));
//
// The group's HostCommunicator transfers no tensors here, but provides what NCCL does not have:
//   - Start. Rank 0 makes NCCL's id, and broadcasts it through the host communicator. The Store
//     would be wrong for three reasons. Everybody who reads the id may join the group, but members
//     of the host communicator have proven that they know the attempt's secret. No id of an earlier
//     attempt can appear in the host communicator. And if a member is missing, the start ends by a
//     deadline that names the member.
//   - Ends. NCCL does not tell a rank that another rank has aborted or has died. A rank that fails
//     aborts the host communicator. The watching thread of every other rank sees this within
//     milliseconds and aborts NCCL, which ends the waiting exchanges.
//   - Blame. At a deadline the ranks tell each other which call they are in. Ranks that do not
//     answer have not arrived and are blamed. If all ranks wait in the same call, no rank is
//     blamed, because then NCCL, a GPU or the network hangs.
//
// Deadlines: a call's time starts when its stream has reached the call, and ends when the exchange
// has ended. Earlier work on the stream does not count, because progress reports watch that.
//
// Errors: as comm::Communicator. A later call returns them, and `on_failure` gets them. A call
// without elements is checked and counted, but exchanges nothing, so it waits for no other rank.
//
// This class does not check that members pass equal sizes, types and instruction ids. NCCL sends no
// headers, and an additional check would cost each call a round trip. Unequal sizes lead to wrong
// numbers, or to the call's deadline, where ids and sizes are compared and named. Tests of a plan
// on the CPU's communicators find them at once.
//
// Determinism: NCCL decides the order of additions. It promises neither the tree of the host's
// communicators nor their fp32 accumulation of BF16. On the same machines with the same NCCL and
// layout, the order is the same in every run.
//
// A group of one rank does not use NCCL, because its calls are only copies.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpu/cuda/cuda_api.h"
#include "gpu/cuda/nccl_api.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/host/host_communicator.h"

namespace megascale::cuda {

struct NcclOptions {
  const NcclApi* nccl = nullptr;  // borrowed, as all pointers here; may be null in a group of one
  const CudaApi* cuda = nullptr;
  // The group's connected host communicator. The NCCL communicator's thread uses it as long as the
  // NCCL communicator lives. Other threads may call it, too, but only while no call of the NCCL
  // communicator runs.
  comm::HostCommunicator* host = nullptr;
  cudaStream_t stream = nullptr;
  absl::Duration start_timeout = absl::Seconds(60);    // of MakeNcclCommunicator
  absl::Duration default_timeout = absl::Seconds(60);  // of calls without a timeout
  // How long a failed rank waits for the others' answers, and for the reason why a peer is gone.
  absl::Duration blame_timeout = absl::Seconds(2);
  // How long an abort waits for a thread that is in a call of NCCL. After this time it aborts NCCL
  // nevertheless, which ends the call.
  absl::Duration abort_grace = absl::Seconds(1);
  // How long the destructor waits for the last exchanges, and for the peers' destructors.
  absl::Duration close_timeout = absl::Seconds(10);
  // Called on the stream's thread before a call puts its exchange on the stream, so that the
  // stream's owner first issues the work that it holds back. May be empty.
  std::function<void()> before_call;
  // Called once, on any thread, before a failure ends the exchanges on the stream. The work after
  // these exchanges then runs on undefined data, so the stream must not report it as done. Must not
  // wait for the stream.
  std::function<void(const absl::Status&)> on_failure;
};

// Meets the group's other members and makes the communicator. All members must call it. Ranks in
// several groups must make the communicators in an order that all ranks share (for example by the
// groups' names), because otherwise they may wait for each other in a circle. Requires: the
// stream's device is the current device of this thread, and of every thread that makes calls.
// Blocking: until all members have called it, at most two `start_timeout`. Cost: NCCL takes device
// memory for each communicator. Errors: DeadlineExceeded, Aborted - as calls; Internal - CUDA or
// NCCL failed; InvalidArgument - an option is missing.
absl::StatusOr<std::unique_ptr<comm::Communicator>> MakeNcclCommunicator(
    const NcclOptions& options);

}  // namespace megascale::cuda
