// The rendezvous store of one attempt: a small key/value service through which ranks find each
// other before they are connected. It is not for tensors, and is not needed while an attempt runs.
// Threads: any; calls block the caller's thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace megascale::comm {

// Errors, of every call: DeadlineExceeded - no answer in time, outcome unknown; Unavailable - the
// connection to the store is gone; Aborted - the attempt has ended; ResourceExhausted - too large
// or too many.
class Store {
 public:
  virtual ~Store() = default;

  // Sets or overwrites `key`.
  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;

  // Returns the value of `key`. Errors: NotFound.
  virtual absl::StatusOr<std::string> Get(const std::string& key) = 0;

  // Adds `amount` to the number at `key` (0 if absent) and returns the sum. `request_id` identifies
  // the addition among those of this client: a repeated addition is not done again, and returns the
  // first answer.
  virtual absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount,
                                      const std::string& request_id) = 0;

  // Waits until `key` is set and returns its value. Blocking: at most `timeout`.
  virtual absl::StatusOr<std::string> Wait(const std::string& key, absl::Duration timeout) = 0;

  // Waits until all `keys` are set and returns their values, in the same order. Cost: one request
  // and one reply, however many keys. Blocking: at most `timeout`.
  virtual absl::StatusOr<std::vector<std::string>> WaitAll(const std::vector<std::string>& keys,
                                                           absl::Duration timeout) = 0;

  // Returns the values that are there now; nullopt: the key is not set. To name what a WaitAll
  // waited for in vain. Cost: a request for each key, all at once.
  virtual absl::StatusOr<std::vector<std::optional<std::string>>> GetAll(
      const std::vector<std::string>& keys) = 0;
};

}  // namespace megascale::comm
