// NCCL for tests, as a table of its functions: works among threads of a process and among processes
// of a machine, over Unix sockets, on the streams and the memory of the emulated CUDA runtime
// (emulated_cuda.h). It keeps NCCL's contracts. If a caller breaks one, it ends the process with a
// line: two threads in one communicator, a call while another call is in progress, use after an
// abort.
//
//   EmulatedMachine machine({.num_devices = 2});
//   EmulatedNccl nccl;
//   cuda::MakeNcclCommunicator({.nccl = &nccl.api(), .cuda = EmulatedCuda(), …});
//
// Communicators are non-blocking (ncclConfig_t::blocking is 0). They sum in the order of the ranks,
// as the host's communicators do, and give the same bits. It detects behaviour that the real NCCL
// leaves undefined: members that make different calls get ncclInternalError and the texts of the
// two calls.
//
// Threads: any. One object per process at a time; it outlives the communicators, and the machine
// outlives the object. A process that forks must make the object in the child.
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
  int64_t call = 1;  // of its communicator, from 1; a group counts as one call; 0: the start
  ncclResult_t result = ncclSystemError;
};

struct EmulatedNcclOptions {
  // Number of polls that are answered with ncclInProgress after every call and after a start. The
  // work reaches the stream after these polls. 0: a call is done when it returns.
  int in_progress_polls = 0;
  std::vector<NcclFault> faults = {};
  // Each exchange occupies its whole device from its launch to its end, so the exchanges of a
  // device run one at a time, in the order of their launches. This is the strictest reading of
  // NCCL's contract: ranks that launch in different orders wait for each other forever.
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
