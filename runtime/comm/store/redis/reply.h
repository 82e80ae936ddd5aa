// What a Redis server answers, as plain data, and what its errors mean to us. Thread-safe: plain
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
  std::string text;                  // of kText, kStatus and kError
  std::vector<RedisReply> elements;  // of kArray
};

// The Status of an error reply: its words, what they mean and what to do about it.
//   Unavailable - it may go away of itself: LOADING, READONLY, MASTERDOWN, CLUSTERDOWN, TRYAGAIN,
//     BUSY, MISCONF, "max number of clients reached"
//   ResourceExhausted - OOM
//   FailedPrecondition - somebody must act first: NOAUTH, WRONGPASS, NOPERM, MOVED, ASK, a server
//     that is protected or has no such database
//   InvalidArgument - ADD to what holds no number
//   Internal - what else it says
// Requires: kind is kError.
absl::Status StatusOfError(const RedisReply& reply);

}  // namespace megascale::comm
