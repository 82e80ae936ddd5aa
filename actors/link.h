// A process's end of the link to its agent: protocol-buffer messages as frames.
// Threads: Send from any thread; Receive from one.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/protobuf/message_lite.h"
#include "runtime/base/fd.h"

namespace megascale::actors {

// How long a process waits for its assignment after its start.
inline constexpr absl::Duration kAssignmentTimeout = absl::Seconds(60);

// Checks the number of descriptors that came with an assignment. Errors: ResourceExhausted - too
// few: the kernel leaves out those for which this process has no room; Internal - too many.
absl::Status CheckDescriptors(size_t num_received, size_t num_expected);

class Link {
 public:
  explicit Link(base::UniqueFd socket) : socket_(std::move(socket)) {}

  // Sends a message. Blocking: at most 30 s, if the agent does not read. Errors: Unavailable - the
  // agent is gone; ResourceExhausted - the message is too large for the link.
  absl::Status Send(const google::protobuf::MessageLite& message);

  // Receives the next message into `message` and returns the descriptors that came with it. Errors:
  // Unavailable - the agent is gone; DeadlineExceeded - no message within `timeout`; DataLoss - the
  // bytes are not a message of this type.
  absl::StatusOr<std::vector<base::UniqueFd>> Receive(google::protobuf::MessageLite* message,
                                                      absl::Duration timeout);

 private:
  base::UniqueFd socket_;
  std::mutex send_mutex_;
};

}  // namespace megascale::actors
