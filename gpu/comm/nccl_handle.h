// A ncclComm_t that one thread uses, and that others may look at and abort. NCCL lets one thread at
// a time call it, and frees a communicator when it is aborted; here calls exclude each other,
// except for an abort while a call does not come back in time.
//
// The communicator is non-blocking: every call may answer "in progress". Wait() polls until it is
// done, so no call of NCCL holds a thread for long.
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
//   Aborted - another process ended or gave up, or the network to it failed;
//   Internal - the device failed, or we called NCCL wrongly.
absl::Status ToStatus(const NcclApi& nccl, ncclResult_t result, absl::string_view detail);

class NcclHandle {
 public:
  // `nccl` must outlive the handle. `abort_grace`: how long Abort waits for a call of NCCL in
  // another thread. Such a call may be held up for good by a full stream, and only the abort frees
  // it.
  NcclHandle(const NcclApi* nccl, absl::Duration abort_grace)
      : nccl_(*nccl), abort_grace_(abort_grace) {}
  // Aborts, unless Close was called.
  ~NcclHandle() { Abort(); }
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  // Begins initialisation, which Wait ends. Requires: the device of the rank is the current one.
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

  // Waits until NCCL has done what was issued. `keep_going` is asked between polls; its error ends
  // the wait. Errors: that of `keep_going`, of NCCL, or Aborted - the handle was aborted.
  absl::Status Wait(absl::FunctionRef<absl::Status()> keep_going);

  // Returns an error of NCCL's that came after its calls (an asynchronous one), or OK. Also OK
  // between Issue and the end of Wait, which returns such errors itself.
  absl::Status FindError();

  // Ends the exchanges that run on the device, and frees the communicator. Later calls do nothing.
  void Abort();

  // Ends the communicator with its peers; aborts it if `keep_going` or NCCL has an error. Requires:
  // all exchanges have ended.
  void Close(absl::FunctionRef<absl::Status()> keep_going);

 private:
  // Waits until no other thread is inside, and returns the communicator; null once it was aborted,
  // and then Leave is not called.
  ncclComm_t Enter();
  void Leave();
  // Returns the state of the communicator that was entered, and in `detail` the text of an error.
  ncclResult_t StateOf(ncclComm_t communicator, std::string* detail) const;

  const NcclApi& nccl_;
  const absl::Duration abort_grace_;
  std::mutex mutex_;
  std::condition_variable left_;       // is_inside_ became false, or communicator_ null
  ncclComm_t communicator_ = nullptr;  // guarded by mutex_; null: aborted, closed, not started
  bool is_inside_ = false;             // guarded by mutex_; a thread is inside of NCCL
  bool is_issuing_ = false;            // guarded by mutex_; Wait has not ended after an Issue
};

}  // namespace megascale::cuda
