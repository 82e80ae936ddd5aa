// The replies of a Redis server as plain data, and its errors as Status. Threads: any; plain
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace megascale::comm {

struct RedisReply {
  enum class Kind { kNil, kInteger, kText, kStatus, kError, kArray };
  Kind kind = Kind::kNil;
  int64_t integer = 0;
  std::string text;                  // kText, kStatus and kError
  std::vector<RedisReply> elements;  // kArray
};

// Returns the Status of an error reply; its message has the server's words, their meaning and what
// to do.
//   Unavailable - may pass by itself: LOADING, READONLY, MASTERDOWN, CLUSTERDOWN, TRYAGAIN,
//     BUSY, MISCONF, "max number of clients reached"
//   ResourceExhausted - OOM
//   FailedPrecondition - a person must act first: NOAUTH, WRONGPASS, NOPERM, MOVED, ASK, a server
//     that is protected or has no such database
//   InvalidArgument - ADD to a value that is not a number
//   Internal - any other error
// Requires: kind is kError.
absl::Status StatusOfError(const RedisReply& reply);

}  // namespace megascale::comm
