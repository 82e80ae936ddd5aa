// The rendezvous store of one attempt: a small key/value service through which ranks find each
// other before they are connected. Not for tensors, and not needed once an attempt runs. Threads:
// any; calls block the caller's thread only.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace megascale::comm {

// Errors, of every call: DeadlineExceeded - no answer in time, outcome unknown; Unavailable - the
// way to the store is gone; Aborted - the attempt has ended; ResourceExhausted - too large or too
// many.
class Store {
 public:
  virtual ~Store() = default;

  // Sets `key`, overwriting.
  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;

  // The value of `key`. Errors: NotFound.
  virtual absl::StatusOr<std::string> Get(const std::string& key) = 0;

  // Adds `amount` to the number at `key` (0 when absent) and returns the sum. `request_id` names
  // the addition among those of this client: the same one again is not added again, and answers as
  // the first did.
  virtual absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount,
                                      const std::string& request_id) = 0;

  // The value of `key`, once it is there. Blocking: at most `timeout`.
  virtual absl::StatusOr<std::string> Wait(const std::string& key, absl::Duration timeout) = 0;
};

}  // namespace megascale::comm
