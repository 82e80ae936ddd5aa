// The store that the driver serves. Keys belong to (job, attempt), are in memory only, and vanish
// with the attempt. Threads: any. Replies are called without the lock, on the thread of the call
// that caused them; they must not block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/agent.pb.h"

namespace megascale::comm {

struct EmbeddedStoreOptions {
  size_t key_bytes_max = 1024;       // of a key, and of a request id
  size_t value_bytes_max = 1 << 20;  // of a value
  size_t reply_bytes_max = 4 << 20;  // of the values of one reply
  size_t attempt_bytes_max =
      256 << 20;                   // of keys, values, remembered additions and waits of one attempt
  size_t num_attempts_max = 1024;  // alive at once, over all jobs
};

class EmbeddedStore {
 public:
  using StoreRequest = megascale::agent::v1::StoreRequest;
  using StoreReply = megascale::agent::v1::StoreReply;
  using Reply = std::function<void(const StoreReply&)>;

  explicit EmbeddedStore(EmbeddedStoreOptions options = {}) : options_(options) {}

  // Serves one request and calls `reply` once: before it returns or, for a WAIT, when all its keys
  // are set or the attempt is dropped. A request id may be repeated after a lost connection: a
  // repeated ADD is not added again; a repeated WAIT replaces the earlier one, whose reply is never
  // called; SET and GET are simply done again. Errors, in the reply: NotFound - GET of a missing
  // key; Aborted - the attempt was dropped; ResourceExhausted - beyond the limits in the options;
  // InvalidArgument - unknown operation, ADD to a key that does not hold a number, several keys for
  // another operation than WAIT, or a WAIT with the id of one for other keys.
  // Cost: independent of the other keys and waits, but for those of this request.
  void Handle(const StoreRequest& request, Reply reply);

  // Forgets the attempts of `job_id` before `attempt`, answers their waits with Aborted, and
  // refuses requests for them.
  void DropAttemptsBefore(const std::string& job_id, int64_t attempt);

  // Forgets a job that has ended. Requires: no requests for it follow.
  void DropJob(const std::string& job_id);

 private:
  // A WAIT that is not answered yet.
  struct Waiter {
    std::string request_id;
    std::vector<uint32_t> keys;  // indices of entries, in the request's order
    bool has_many = false;       // asked with StoreRequest.keys
    size_t num_missing = 0;      // of `keys`, counted as often as they occur
    Reply reply;
  };
  // A key that is set, or that somebody waits for.
  struct Entry {
    std::string key;
    std::string value;
    bool is_set = false;
    std::vector<Waiter*> waiters;  // empty if it is set
  };
  struct Attempt {
    std::deque<Entry> entries;
    absl::flat_hash_map<std::string, uint32_t> index;        // key -> place in `entries`
    absl::flat_hash_map<std::string, int64_t> additions;     // request id -> sum
    std::map<std::string, std::unique_ptr<Waiter>> waiters;  // by request id
    size_t size_bytes = 0;

    const Entry* Find(const std::string& key) const;
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
  // Makes the entry if there is none.
  absl::StatusOr<uint32_t> IndexOf(Attempt& attempt, const std::string& key) const;
  absl::Status Put(Attempt& attempt, const std::string& key, std::string value,
                   Outgoing& outgoing) const;
  absl::Status Add(Attempt& attempt, const StoreRequest& request, StoreReply& answer,
                   Outgoing& outgoing) const;
  // Answers at once or, if a key is missing, later.
  absl::Status Wait(Attempt& attempt, const StoreRequest& request, const Reply& reply,
                    Outgoing& outgoing) const;
  // Replaces the reply of a WAIT that is repeated. Returns whether there is one.
  static absl::StatusOr<bool> Replace(Attempt& attempt, const StoreRequest& request,
                                      const Reply& reply);
  absl::Status Reserve(Attempt& attempt, size_t more_bytes, size_t fewer_bytes) const;
  static absl::Status Get(const Attempt& attempt, const std::string& key, StoreReply& answer);
  static size_t BytesOf(const Waiter& waiter);
  void AnswerWaiters(Attempt& attempt, Entry& entry, Outgoing& outgoing) const;
  StoreReply ValuesFor(const Attempt& attempt, const Waiter& waiter) const;
  void Drop(std::map<int64_t, Attempt>& attempts, std::map<int64_t, Attempt>::iterator end,
            const std::string& job_id, Outgoing& outgoing);

  const EmbeddedStoreOptions options_;
  std::mutex mutex_;
  std::map<std::string, Job> jobs_;
  size_t num_attempts_ = 0;  // of all jobs
};

}  // namespace megascale::comm
