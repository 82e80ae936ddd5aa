// A ncclComm_t that one thread uses, and that other threads may check and abort. Only one thread at
// a time may call NCCL for a communicator, and an abort frees the communicator. So this class makes
// calls exclude each other. Only an abort does not wait for a call that does not return in time.
//
// The communicator is non-blocking, which means that every call may return "in progress". Wait()
// polls until the call is done, so no call of NCCL blocks a thread for long.
//
// Threads: Start, Issue and Wait on one thread; FindError and Abort on any.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gpu/cuda/nccl_api.h"

namespace megascale::cuda {

// Returns OK for ncclSuccess, else a status whose message is "NCCL: <its text>: `detail`":
//   Aborted - another process ended or aborted, or the network to it failed;
//   Internal - the device failed, or we called NCCL wrongly.
absl::Status ToStatus(const NcclApi& nccl, ncclResult_t result, absl::string_view detail);

class NcclHandle {
 public:
  // `nccl` must outlive the handle. `abort_grace`: how long Abort waits for a call of NCCL in
  // another thread. A full stream may block such a call forever, and only the abort ends it.
  NcclHandle(const NcclApi* nccl, absl::Duration abort_grace)
      : nccl_(*nccl), abort_grace_(abort_grace) {}
  // Aborts, unless Close was called.
  ~NcclHandle() { Abort(); }
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  // Begins the initialisation; Wait waits for its end. Requires: the rank's device is the current
  // device.
  struct Membership {
    ncclUniqueId id = {};
    int rank = 0;
    int size = 1;
    std::string name;  // for NCCL's log, and for the profiler plugin
  };
  absl::Status Start(const Membership& membership);

  // Calls `call` with the communicator; its work counts as issued once Wait has returned OK.
  // Errors: as ToStatus; Aborted - the handle was aborted.
  absl::Status Issue(absl::FunctionRef<ncclResult_t(ncclComm_t)> call);

  // Waits until NCCL has done what was issued. Calls `keep_going` between polls; its error ends the
  // wait. Errors: those of `keep_going` and of NCCL; Aborted - the handle was aborted.
  absl::Status Wait(absl::FunctionRef<absl::Status()> keep_going);

  // Returns an asynchronous error, which NCCL found after its calls had returned, or OK. Returns OK
  // between Issue and the end of Wait, because Wait itself returns such errors.
  absl::Status FindError();

  // Ends the exchanges that run on the device, and frees the communicator. Later calls do nothing.
  void Abort();

  // Ends the communicator together with its peers; aborts it if `keep_going` or NCCL returns an
  // error. Requires: all exchanges have ended.
  void Close(absl::FunctionRef<absl::Status()> keep_going);

 private:
  // Waits until no other thread is in a call of NCCL, and returns the communicator. Returns null
  // once the communicator was aborted; then Leave must not be called.
  ncclComm_t Enter();
  void Leave();
  // Returns the state of the communicator that was entered, and in `detail` the text of an error.
  ncclResult_t StateOf(ncclComm_t communicator, std::string* detail) const;

  const NcclApi& nccl_;
  const absl::Duration abort_grace_;
  std::mutex mutex_;
  std::condition_variable left_;       // is_inside_ became false, or communicator_ null
  ncclComm_t communicator_ = nullptr;  // guarded by mutex_; null: aborted, closed, not started
  bool is_inside_ = false;             // guarded by mutex_; a thread is in a call of NCCL
  bool is_issuing_ = false;            // guarded by mutex_; Wait has not ended after an Issue
};

}  // namespace megascale::cuda
