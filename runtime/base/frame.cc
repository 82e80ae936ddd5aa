#include "runtime/base/frame.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace megascale::base {
namespace {

constexpr size_t kPieceBytes = 1 << 20;
constexpr size_t kFdsPerMessageMax = kFrameFdsMax / sizeof(uint32_t);  // the kernel takes 253

class Deadline {
 public:
  explicit Deadline(absl::Duration timeout) : end_(RealClock().Monotonic() + timeout) {}

  // Waits until `socket` is ready for `events`.
  absl::Status Await(int socket, short events) const {
    for (;;) {
      const absl::Duration left = end_ - RealClock().Monotonic();
      if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("frame: timed out");
      pollfd entry = {socket, events, 0};
      const int ready = ::poll(&entry, 1, PollMilliseconds(left));
      if (ready > 0) return absl::OkStatus();
      if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    }
  }

 private:
  absl::Duration end_;
};

absl::Status GoneOr(int error, const char* what) {
  if (error == EPIPE || error == ECONNRESET) {
    return absl::UnavailableError(absl::StrCat(what, ": the other end is gone"));
  }
  return ErrnoStatus(error, what);
}

// Sends descriptors with the first bytes: all but the last message are one byte each. Requires:
// `data` has a byte for each message.
absl::Status SendSome(int socket, absl::string_view data, absl::Span<const int> fds,
                      const Deadline& deadline) {
  while (!data.empty()) {
    const absl::Span<const int> now = fds.subspan(0, kFdsPerMessageMax);
    const size_t size = now.size() < fds.size() ? 1 : data.size();
    iovec part = {const_cast<char*>(data.data()), size};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kFdsPerMessageMax)] = {};
    if (!now.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(sizeof(int) * now.size());
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int) * now.size());
      std::memcpy(CMSG_DATA(header), now.data(), sizeof(int) * now.size());
    }
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) {
      RETURN_IF_ERROR(deadline.Await(socket, POLLOUT));
      continue;
    }
    if (sent < 0) return GoneOr(errno, "send");
    fds.remove_prefix(now.size());
    data.remove_prefix(static_cast<size_t>(sent));
  }
  return absl::OkStatus();
}

void TakeFds(msghdr* message, std::vector<UniqueFd>* fds) {
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr;
       header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      fds->emplace_back(fd);
    }
  }
}

absl::Status ReceiveSome(int socket, char* data, size_t size, std::vector<UniqueFd>* fds,
                         const Deadline& deadline) {
  while (size > 0) {
    iovec part = {data, size};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kFdsPerMessageMax)];
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      RETURN_IF_ERROR(deadline.Await(socket, POLLIN));
      continue;
    }
    if (got < 0) return GoneOr(errno, "receive");
    TakeFds(&message, fds);
    if (got == 0) return absl::UnavailableError("receive: the other end is gone");
    data += got;
    size -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> MakeSocketPair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  return std::make_pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

absl::Status SendFrame(int socket, const std::string& payload, const std::vector<int>& fds,
                       absl::Duration timeout) {
  if (payload.size() > kFrameBytesMax || fds.size() > kFrameFdsMax) {
    return absl::InvalidArgumentError(absl::StrCat("frame of ", payload.size(), " bytes and ",
                                                   fds.size(), " descriptors; expected at most ",
                                                   kFrameBytesMax, " and ", kFrameFdsMax));
  }
  const auto length = static_cast<uint32_t>(payload.size());
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  bytes += payload;
  return SendSome(socket, bytes, fds, Deadline(timeout));
}

absl::StatusOr<Frame> ReceiveFrame(int socket, absl::Duration timeout) {
  const Deadline deadline(timeout);
  Frame frame;
  uint32_t length = 0;
  RETURN_IF_ERROR(
      ReceiveSome(socket, reinterpret_cast<char*>(&length), sizeof(length), &frame.fds, deadline));
  if (length > kFrameBytesMax) {
    return absl::DataLossError(absl::StrCat("frame: length ", length, " exceeds the limit"));
  }
  // Grow the buffer with the received bytes, so that a length alone takes no memory.
  while (frame.payload.size() < length) {
    const size_t begin = frame.payload.size();
    const size_t piece = std::min(kPieceBytes, length - begin);
    frame.payload.resize(begin + piece);
    RETURN_IF_ERROR(ReceiveSome(socket, frame.payload.data() + begin, piece, &frame.fds, deadline));
  }
  return frame;
}

}  // namespace megascale::base
