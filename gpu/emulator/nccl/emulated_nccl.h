// NCCL for tests, as a table of its functions: works among threads of a process and among processes
// of a machine, over Unix sockets, on the streams and the memory of the emulated CUDA runtime
// (emulated_cuda.h). It keeps NCCL's contracts, and ends the process with a line where a caller
// breaks one: two threads in one communicator, a call while another is in progress, use after an
// abort.
//
//   EmulatedMachine machine({.num_devices = 2});
//   EmulatedNccl nccl;
//   cuda::MakeNcclCommunicator({.nccl = &nccl.api(), .cuda = EmulatedCuda(), …});
//
// Communicators are non-blocking (ncclConfig_t::blocking is 0), and sum in the order of the ranks,
// as the host's communicators do, to the same bits. What the real NCCL leaves undefined is found:
// members that make different calls get ncclInternalError and the text of both.
//
// Threads: any. One object per process at a time; it outlives the communicators, and the machine
// outlives it. A process that forks makes it in the child.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/cuda/nccl_api.h"

namespace megascale::emulator {

// A fault of one rank of a communicator.
struct NcclFault {
  enum class Kind : uint8_t {
    kFail,  // the call has the asynchronous error `result`; its stream waits for an abort
    kHang,  // the call never takes part in the exchange
    kDie,   // the process gets SIGKILL
  };
  Kind kind = Kind::kFail;
  int rank = 0;
  int64_t call = 1;  // counted on that communicator, from 1; a group is one call; 0: the start
  ncclResult_t result = ncclSystemError;
};

struct EmulatedNcclOptions {
  // Polls that are answered with ncclInProgress after every call and after a start; work reaches
  // the stream after them. 0: a call is done when it returns.
  int in_progress_polls = 0;
  std::vector<NcclFault> faults = {};
  // Each exchange holds its whole device from its launch to its end: the exchanges of a device run
  // one at a time, in the order of their launches. The strictest reading of NCCL's contract: ranks
  // that launch in orders that do not agree wait for each other for ever.
  bool holds_device = false;
};

class EmulatedNccl {
 public:
  explicit EmulatedNccl(const EmulatedNcclOptions& options = {});
  // Requires: all communicators were destroyed or aborted.
  ~EmulatedNccl();
  EmulatedNccl(const EmulatedNccl&) = delete;
  EmulatedNccl& operator=(const EmulatedNccl&) = delete;

  static const cuda::NcclApi& api();
};

}  // namespace megascale::emulator
