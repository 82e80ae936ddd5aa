// The calls that were enqueued on a stream and have not ended. CUDA events before and after each
// call tell when the stream has reached the call and when the call has ended. Querying an event
// never waits.
//
// Threads: Begin and End on the stream's thread, the others on any thread. Begin and End hold no
// lock while they record an event, because that waits if the stream is full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpu/cuda/cuda_api.h"
#include "runtime/comm/communicator.h"

namespace megascale::cuda {

struct Call {
  comm::Operation operation = comm::Operation::kBarrier;
  uint64_t sequence = 0;
  uint64_t instruction_id = 0;
  size_t bytes = 0;    // of this rank's larger buffer
  int peer_rank = -1;  // world rank of the other end of a message; -1: a collective
  absl::Duration timeout = {};
};

// Returns "all-reduce 12 (instruction 7, 4096 bytes)", or "send 3 to rank 2 (…)".
std::string Describe(const Call& call);

class CallWatch {
 public:
  // `cuda` must outlive the watch.
  CallWatch(const CudaApi* cuda, cudaStream_t stream) : cuda_(*cuda), stream_(stream) {}
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  // Mark where a call begins on the stream and where it ends. Errors: those of CUDA.
  absl::Status Begin(const Call& call);
  absl::Status End();

  // Forgets calls that have ended, and returns the call that the stream is executing, if any.
  // `now`: monotonic. Errors: Internal - the device failed.
  struct Running {
    Call call;
    absl::Duration since;  // when Look first found that the call had begun
  };
  absl::StatusOr<std::optional<Running>> Look(absl::Duration now);

  // Returns the oldest call whose end no Look has found yet.
  std::optional<Call> Oldest() const;

 private:
  struct Entry {
    Call call;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    bool has_end = false;  // `end` was recorded
    std::optional<absl::Duration> since = {};
  };

  absl::StatusOr<cudaEvent_t> TakeEvent();
  absl::StatusOr<bool> HasPassed(cudaEvent_t event) const;

  const CudaApi& cuda_;
  const cudaStream_t stream_;
  mutable std::mutex mutex_;
  std::deque<Entry> entries_;         // guarded by mutex_
  std::vector<cudaEvent_t> unused_;   // guarded by mutex_
  std::vector<cudaEvent_t> created_;  // guarded by mutex_
};

}  // namespace megascale::cuda
