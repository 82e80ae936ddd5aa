// Length-prefixed messages with file descriptors over a socket pair: the link between an agent and
// its processes. A frame is 4 bytes of length (little endian), then that many bytes; descriptors
// are spread over the first bytes of the frame, because the kernel passes at most 253 with one
// message.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/fd.h"

namespace megascale::base {

inline constexpr size_t kFrameBytesMax = 64 << 20;
// The 4 bytes of the length carry 250 descriptors each.
inline constexpr size_t kFrameFdsMax = 1000;

struct Frame {
  std::string payload;
  std::vector<UniqueFd> fds;
};

// Makes a connected pair of stream sockets, close-on-exec.
absl::StatusOr<std::pair<UniqueFd, UniqueFd>> MakeSocketPair();

// Sends one frame. Blocking: until it is written, at most `timeout`. Errors: Unavailable - the
// other end is gone; DeadlineExceeded; InvalidArgument - too large, or too many descriptors.
absl::Status SendFrame(int socket, const std::string& payload, const std::vector<int>& fds,
                       absl::Duration timeout);

// Receives one frame. Blocking: at most `timeout` (infinite: absl::InfiniteDuration()).
// Errors: Unavailable - the other end is gone; DeadlineExceeded; DataLoss - the length is absurd.
// Descriptors that this process may not open (ulimit -n) are missing from the frame, so the caller
// must check how many came.
absl::StatusOr<Frame> ReceiveFrame(int socket, absl::Duration timeout);

}  // namespace megascale::base
