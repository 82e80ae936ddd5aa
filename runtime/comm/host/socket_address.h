// The address at which a rank listens for streams, as text that others find in the store: "unix
// PATH" or "tcp ADDRESS PORT".
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/fd.h"

namespace megascale::comm {

// A non-blocking listening socket. A Unix socket's file is removed with it.
class ListeningSocket {
 public:
  // Listens at `directory`/`name`. Errors: NotFound - no such directory; PermissionDenied - other
  // users have access to it; InvalidArgument - the path is longer than the 107 bytes that the
  // system permits.
  static absl::StatusOr<ListeningSocket> ListenUnix(const std::string& directory,
                                                    const std::string& name);
  // Listens at a free port of one interface. Errors: InvalidArgument - not a numeric address, or
  // the address of all interfaces.
  static absl::StatusOr<ListeningSocket> ListenTcp(const std::string& address);

  ListeningSocket(ListeningSocket&& other) noexcept
      : fd_(std::move(other.fd_)),
        path_(std::exchange(other.path_, "")),
        address_(std::move(other.address_)) {}
  ListeningSocket& operator=(ListeningSocket&&) = delete;
  ~ListeningSocket();

  int fd() const { return fd_.get(); }
  const std::string& address() const { return address_; }

 private:
  ListeningSocket() = default;

  base::UniqueFd fd_;
  std::string path_;  // Unix socket only
  std::string address_;
};

// Returns a non-blocking socket that is connected, or connecting: once it is writable,
// FinishConnect says whether that worked. Errors: ResourceExhausted - the listener is busy, try
// again; DeadlineExceeded - no answer from there, or no way there, which may change; Unavailable -
// no listener there; PermissionDenied - the Unix socket's directory, the
// socket or the listener belongs to another user.
absl::StatusOr<base::UniqueFd> StartConnect(const std::string& address);
absl::Status FinishConnect(int fd);

// Checks a socket that was accepted at `address`: the peer of a Unix socket must run as this user.
// TCP peers authenticate later. Errors: PermissionDenied - it runs as another user.
absl::Status CheckAccepted(int fd, const std::string& address);

// Sets the options of a stream that was connected or accepted.
void PrepareStream(int fd);

}  // namespace megascale::comm
