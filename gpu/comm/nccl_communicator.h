// The communicator of a group on GPUs: NCCL, with the deadlines and the errors of
// comm::Communicator. Calls only enqueue: the exchange runs on the stream, after the work before
// it. A thread of the communicator watches it and ends it when it fails.
//
//   ASSIGN_OR_RETURN(auto communicator, MakeNcclCommunicator({.nccl = nccl, .cuda = cuda,
//                                                             .host = host, .stream = stream}));
//   RETURN_IF_ERROR(communicator->AllReduce(gradients, {.instruction_id = 7}));
//
// The group's HostCommunicator carries no tensors here, but all that NCCL does not have:
//   - Start. Rank 0 makes NCCL's id, and broadcasts it. Not through the Store: whoever reads the id
//     may join the group, and the host communicator has proven that its members know the attempt's
//     secret; an id of an earlier attempt cannot appear there; and a missing member ends the start
//     by a deadline that names it.
//   - Ends. NCCL does not tell a rank that another one has aborted, or has died. A rank that fails
//     aborts the host communicator, and every other rank's watch sees that within milliseconds,
//     aborts NCCL, and so frees what waits there.
//   - Blame. At a deadline the ranks tell each other which call they are in. Those that do not
//     answer have not arrived and are blamed; if all wait in one call, the network is at fault, and
//     no rank is blamed.
//
// Deadlines: a call's time starts when its stream has come to it, and ends when its exchange has
// ended. Work before it on the stream does not count: progress reports watch that.
//
// Errors: as comm::Communicator. They come with a later call, and with `on_failure`. A call without
// elements is checked and counted, but exchanges nothing, so it waits for nobody.
//
// Not checked here: that members pass equal sizes, types and instruction ids. NCCL sends no headers
// and a check of its own would cost each call a round trip; wrong sizes of one call end in its
// deadline, where ids and sizes are compared and named, or in wrong numbers. Tests of a plan on the
// CPU's communicators find them at once.
//
// Determinism: a sum's order is NCCL's: neither the left fold of the host's communicators nor their
// fp32 accumulation of BF16 is promised. On the same machines with the same NCCL and layout it is
// the same in every run.
//
// A group of one rank does not use NCCL: its calls are copies.
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
  // The group, connected. The communicator's thread uses it as long as the communicator lives.
  // Others may call it too, but only while no call of this communicator is under way.
  comm::HostCommunicator* host = nullptr;
  cudaStream_t stream = nullptr;
  absl::Duration start_timeout = absl::Seconds(60);    // of MakeNcclCommunicator
  absl::Duration default_timeout = absl::Seconds(60);  // of calls that give none
  // How long a failed rank waits for the others' answers, and for the reason why a peer is gone.
  absl::Duration blame_timeout = absl::Seconds(2);
  // How long an abort waits for a thread that is inside of NCCL, before it frees that thread.
  absl::Duration abort_grace = absl::Seconds(1);
  // How long the destructor waits for the last exchanges, and for the peers' destructors.
  absl::Duration close_timeout = absl::Seconds(10);
  // Called before a call puts its exchange on the stream: what the owner of the stream holds back
  // comes first. On the stream's thread. May be empty.
  std::function<void()> before_call;
  // Called once, before a failure frees the exchanges on the stream. The work behind them then runs
  // on garbage, so the stream must not report it as done. On any thread; must not wait for the
  // stream.
  std::function<void(const absl::Status&)> on_failure;
};

// Meets the group's other members and makes the communicator. All members call it; a rank in
// several groups makes their communicators in one order that all ranks share (that of the groups'
// names, say), or they wait for each other in a circle. Requires: the stream's device is the
// current one of this thread, and of every thread that makes calls. Blocking: until all members
// have come, at most two `start_timeout`. Cost: NCCL takes device memory for each communicator.
// Errors: DeadlineExceeded, Aborted - as calls; Internal - CUDA or NCCL failed; InvalidArgument -
// an option is missing.
absl::StatusOr<std::unique_ptr<comm::Communicator>> MakeNcclCommunicator(
    const NcclOptions& options);

}  // namespace megascale::cuda
