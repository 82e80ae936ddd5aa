// Protocol-buffer messages as bytes, without the silent failure of SerializeAsString: of a message
// of 2 GiB or more it returns an empty text. Thread-safe.
#pragma once

#include <climits>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace megascale::base {

// The most that protocol buffers can serialize.
inline constexpr size_t kMessageBytesMax = INT_MAX;

// Returns the message as bytes. Errors: ResourceExhausted - it has more than `bytes_max` bytes.
template <typename Message>
absl::StatusOr<std::string> Serialize(const Message& message, size_t bytes_max = kMessageBytesMax) {
  std::string bytes;
  const size_t size = message.ByteSizeLong();
  if (size <= bytes_max && message.SerializeToString(&bytes)) return bytes;
  return absl::ResourceExhaustedError(absl::StrCat("a message ", message.GetTypeName(), " of ",
                                                   size, " bytes is too large; expected at most ",
                                                   bytes_max));
}

}  // namespace megascale::base
