// Where a rank listens for streams, as text that others find in the store: "unix PATH" or "tcp
// ADDRESS PORT".
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/fd.h"

namespace megascale::comm {

// A non-blocking listening socket. A Unix socket's name vanishes with it.
class ListeningSocket {
 public:
  // At `directory`/`name`. Errors: PermissionDenied - the directory is not the user's alone;
  // InvalidArgument - the path is longer than the 107 bytes that the system permits.
  static absl::StatusOr<ListeningSocket> ListenUnix(const std::string& directory,
                                                    const std::string& name);
  // At a free port of one interface. Errors: InvalidArgument - not a numeric address, or that of
  // all interfaces.
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
  std::string path_;  // of a Unix socket
  std::string address_;
};

// A non-blocking socket that is connected, or will be once it is writable (FinishConnect says
// whether it worked). Errors: ResourceExhausted - the listener is busy, try again; Unavailable -
// nobody listens there.
absl::StatusOr<base::UniqueFd> StartConnect(const std::string& address);
absl::Status FinishConnect(int fd);

// Options of a stream that has been connected or accepted.
void PrepareStream(int fd);

}  // namespace megascale::comm
