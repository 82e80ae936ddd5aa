#include "runtime/comm/store/redis/dial.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/socket/own_socket.h"
#include "runtime/base/status.h"

namespace megascale::comm {

// Outlives the dial while its thread waits for a name server.
struct RedisDial::Lookup {
  base::UniqueFd done{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::mutex mutex;
  absl::Status status;
  std::vector<Place> places;

  // Looks up the addresses. AI_NUMERICHOST in `flags`: without asking a name server. False: no
  // address.
  bool Run(const std::string& host, int port, int flags) {
    addrinfo hints = {};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | flags;
    addrinfo* found = nullptr;
    const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    const std::lock_guard<std::mutex> lock(mutex);
    if (error != 0) {
      status = absl::UnavailableError(
          absl::StrCat("looking up ", host, ": ", absl::AsciiStrToLower(::gai_strerror(error))));
    } else {
      for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
        Place& place = places.emplace_back();
        place.size = std::min<socklen_t>(one->ai_addrlen, sizeof(place.bytes));
        std::memcpy(&place.bytes, one->ai_addr, place.size);
      }
      ::freeaddrinfo(found);
      std::reverse(places.begin(), places.end());
    }
    const uint64_t one = 1;
    (void)!::write(done.get(), &one, sizeof(one));
    return error == 0;
  }
};

namespace {

bool IsReady(int fd, short events) {
  pollfd entry = {fd, events, 0};
  return ::poll(&entry, 1, 0) == 1;
}

constexpr char kAdvice[] = "let the job's store name a socket in a folder of the server's account";

absl::Status Usable(const absl::Status& checked) {
  return absl::IsPermissionDenied(checked) ? absl::FailedPreconditionError(checked.message())
                                           : checked;
}

}  // namespace

RedisDial::RedisDial(const RedisAddress& address, const RedisTls& tls)
    : address_(address), tls_(tls), last_(absl::UnavailableError("it has no address")) {
  if (address_.is_unix) {
    Place& place = places_.emplace_back();
    sockaddr_un local = {};
    local.sun_family = AF_UNIX;
    address_.path.copy(local.sun_path, sizeof(local.sun_path) - 1);
    place.size = sizeof(local);
    std::memcpy(&place.bytes, &local, sizeof(local));
    return;
  }
  lookup_ = std::make_shared<Lookup>();
  if (lookup_->Run(address_.host, address_.port, AI_NUMERICHOST)) return;
  lookup_ = std::make_shared<Lookup>();
  std::thread([lookup = lookup_, host = address_.host, port = address_.port] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    lookup->Run(host, port, 0);
  }).detach();
}

int RedisDial::fd() const { return lookup_ != nullptr ? lookup_->done.get() : socket_.get(); }

short RedisDial::events() const { return lookup_ != nullptr ? POLLIN : POLLOUT; }

absl::Status RedisDial::TakeLookup() {
  const std::lock_guard<std::mutex> lock(lookup_->mutex);
  places_ = lookup_->places;
  return lookup_->status;
}

absl::StatusOr<bool> RedisDial::Drive() {
  if (lookup_ != nullptr) {
    if (!IsReady(lookup_->done.get(), POLLIN)) return false;
    const absl::Status looked_up = TakeLookup();
    lookup_.reset();
    RETURN_IF_ERROR(looked_up);
  }
  for (;;) {
    if (socket_.valid()) {
      if (!IsReady(socket_.get(), POLLOUT)) return false;
      int error = 0;
      socklen_t size = sizeof(error);
      ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == 0) return Connected();
      last_ = absl::UnavailableError(absl::AsciiStrToLower(strerror(error)));
      socket_.reset();
    }
    if (places_.empty()) return last_;
    if (address_.is_unix) RETURN_IF_ERROR(Usable(base::CheckServerSocket(address_.path, kAdvice)));
    const Place place = places_.back();
    places_.pop_back();
    socket_ = base::UniqueFd(
        ::socket(place.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket_.valid()) {
      last_ = absl::UnavailableError(base::ErrnoStatus(errno, "socket").message());
      continue;
    }
    const auto* bytes = reinterpret_cast<const sockaddr*>(&place.bytes);
    if (::connect(socket_.get(), bytes, place.size) != 0 && errno != EINPROGRESS) {
      last_ = absl::UnavailableError(absl::AsciiStrToLower(strerror(errno)));
      socket_.reset();
    }
  }
}

absl::StatusOr<bool> RedisDial::Connected() {
  if (address_.is_unix) {  // before the password is sent there
    RETURN_IF_ERROR(Usable(base::CheckServerPeer(socket_.get(), address_.path, kAdvice)));
  } else {
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  if (!address_.has_tls) return true;
  base::TlsTunnelOptions options;
  options.ca_file = tls_.ca_file;
  options.certificate_file = tls_.certificate_file;
  options.key_file = tls_.key_file;
  options.server_name = address_.host;
  ASSIGN_OR_RETURN(tunnel_, base::TlsTunnel::Start(std::move(socket_), options));
  socket_ = tunnel_->TakePlainEnd();
  return true;
}

}  // namespace megascale::comm
