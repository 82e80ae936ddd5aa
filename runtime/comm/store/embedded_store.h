// The store that the driver serves. Keys belong to (job, attempt), are in memory only, and vanish
// with the attempt. Threads: any. Replies are called without the lock, on the thread of the call
// that caused them; they must not block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/agent.pb.h"

namespace megascale::comm {

struct EmbeddedStoreOptions {
  size_t key_bytes_max = 1024;       // of a key, and of a request id
  size_t value_bytes_max = 1 << 20;  // of a value
  size_t attempt_bytes_max =
      64 << 20;                    // of keys, values, remembered additions and waits of one attempt
  size_t num_attempts_max = 1024;  // alive at once, over all jobs
};

class EmbeddedStore {
 public:
  using StoreRequest = megascale::agent::v1::StoreRequest;
  using StoreReply = megascale::agent::v1::StoreReply;
  using Reply = std::function<void(const StoreReply&)>;

  explicit EmbeddedStore(EmbeddedStoreOptions options = {}) : options_(options) {}

  // Serves one request and calls `reply` once: before it returns or, for a WAIT, when the key is
  // set or the attempt is dropped. A request id may be repeated after a lost connection: a repeated
  // ADD is not added again; a repeated WAIT replaces the earlier one, whose reply is never called;
  // SET and GET are simply done again. Errors, in the reply: NotFound - GET of a missing key;
  // Aborted - the attempt was dropped; ResourceExhausted - beyond the limits in the options;
  // InvalidArgument - unknown operation, or ADD to a key that does not hold a number.
  void Handle(const StoreRequest& request, Reply reply);

  // Forgets the attempts of `job_id` before `attempt`, answers their waits with Aborted, and
  // refuses requests for them.
  void DropAttemptsBefore(const std::string& job_id, int64_t attempt);

  // Forgets a job that has ended. Requires: no requests for it follow.
  void DropJob(const std::string& job_id);

 private:
  struct Waiter {
    std::string key;
    Reply reply;
  };
  struct Attempt {
    std::map<std::string, std::string> values;
    std::map<std::string, int64_t> additions;  // request id -> sum
    std::map<std::string, Waiter> waiters;     // request id -> wait
    size_t size_bytes = 0;
  };
  struct Job {
    int64_t oldest_attempt = 0;
    std::map<int64_t, Attempt> attempts;
  };
  // Replies to call once the lock is released.
  using Outgoing = std::vector<std::pair<Reply, StoreReply>>;

  // The methods below require that mutex_ is held.
  void HandleLocked(const StoreRequest& request, Reply reply, Outgoing& outgoing);
  absl::StatusOr<Attempt*> FindAttempt(const StoreRequest& request);
  absl::Status Put(Attempt& attempt, const std::string& key, std::string value);
  absl::Status Add(Attempt& attempt, const StoreRequest& request, StoreReply& answer);
  absl::Status AddWaiter(Attempt& attempt, const StoreRequest& request, const Reply& reply);
  absl::Status Reserve(Attempt& attempt, size_t more_bytes, size_t fewer_bytes) const;
  static absl::Status Get(const Attempt& attempt, const std::string& key, StoreReply& answer);
  static size_t WaiterBytes(const std::string& request_id, const std::string& key);
  static void AnswerWaiters(Attempt& attempt, const std::string& key, Outgoing& outgoing);
  static void Cancel(Attempt& attempt, const absl::Status& reason, Outgoing& outgoing);

  const EmbeddedStoreOptions options_;
  std::mutex mutex_;
  std::map<std::string, Job> jobs_;
};

}  // namespace megascale::comm
