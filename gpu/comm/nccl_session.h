// NCCL for one group, from its start to its end: enqueues calls, watches them, and ends everything
// at the first failure. NcclCommunicator decides what a call does; nccl_communicator.h explains
// rules and errors.
//
// Threads: Start, then Run on the stream's thread; Abort and Fail on any thread. A thread of the
// session checks the running calls every few milliseconds.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gpu/comm/call_watch.h"
#include "gpu/comm/nccl_communicator.h"
#include "gpu/comm/nccl_handle.h"
#include "gpu/comm/profiler_plugin.h"

namespace megascale::cuda {

class NcclSession {
 public:
  explicit NcclSession(const NcclOptions& options);
  // Waits for the running calls and ends NCCL together with the peers; after a failure, or after
  // `close_timeout`, ends it without the peers.
  ~NcclSession();

  // Call it once, before everything else. After an error the session can only be destroyed.
  absl::Status Start();

  // Enqueues `work` as the call `call`. Errors: the failure that ended the session, now or before.
  using Work = absl::FunctionRef<ncclResult_t(ncclComm_t)>;
  absl::Status Run(const Call& call, Work work);

  // Returns OK, or the status with which the session failed.
  absl::Status failure() const;

  // Fails the session with Aborted and the message of `reason`.
  void Abort(const absl::Status& reason);

  comm::HostCommunicator& host() const { return host_; }
  // One F32 in the device's memory, for barriers.
  void* barrier() const { return barrier_; }
  cudaStream_t stream() const { return options_.stream; }

 private:
  // The call that a rank is in, as the rank reports it to the others.
  struct Report;

  absl::Status Fail(const absl::Status& status);
  std::string Context() const;

  // Start.
  absl::Status StartNccl();
  absl::Status AwaitStart();
  absl::Status AgreeOnStart(bool has_started);
  absl::StatusOr<std::vector<Report>> ExchangeReports(Report mine, absl::Duration timeout);

  // The watch's thread.
  void Watch();
  bool AwaitLook();
  absl::Status Look();
  absl::Status EndLate(const CallWatch::Running& late, absl::string_view how);
  absl::Status Compare(const Report& mine, const std::vector<Report>& reports) const;

  // Returns why a peer is gone, or OK.
  absl::Status FindGonePeer();
  // Returns NCCL's `error`, with what the host communicator knows about the cause.
  absl::Status Explain(const absl::Status& error, const Call* call);

  const NcclOptions options_;
  const NcclApi& nccl_;
  const CudaApi& cuda_;
  comm::HostCommunicator& host_;
  NcclProgress progress_;  // destroyed after NCCL, which calls it
  NcclHandle handle_;
  CallWatch calls_;
  int device_ = 0;
  void* barrier_ = nullptr;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool has_work_ = false;           // guarded by mutex_; a call was enqueued since the last look
  bool closing_ = false;            // guarded by mutex_
  absl::Status failure_;            // guarded by mutex_; the first
  absl::Duration next_peer_check_;  // guarded by mutex_
  std::thread watch_;
};

}  // namespace megascale::cuda
