#include "controlplane/driver/listen/tcp_port.h"

#include <arpa/inet.h>
#include <grpcpp/server_builder.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/socket/listen_tcp.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

constexpr int kTcpBacklog = 4096;  // the kernel lowers it to its own limit
constexpr int kAcceptsPerTurn = 64;
constexpr absl::Duration kTcpWarnInterval = absl::Minutes(1);
constexpr int kTcpPauseMilliseconds = 100;  // when no descriptor is free
constexpr int kKeptMin = 64;
constexpr int kKeptMax = 4096;

absl::Duration TimeNow() { return base::RealClock().Monotonic(); }

int PeerPort(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

bool IsMapped(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 &&
         IN6_IS_ADDR_V4MAPPED(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// Returns the address in words. An IPv4 address that came through a socket of IPv6 is an IPv4
// address, as gRPC says it, too.
std::string HostOf(const sockaddr_storage& address) {
  if (IsMapped(address)) {
    std::array<char, INET_ADDRSTRLEN> text = {};
    const auto& bytes = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr.s6_addr;
    return ::inet_ntop(AF_INET, bytes + 12, text.data(), text.size());
  }
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const void* bytes =
      address.ss_family == AF_INET6
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr)
          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  ::inet_ntop(address.ss_family, bytes, text.data(), text.size());
  return text.data();
}

// Returns gRPC's name of the other end.
std::string PeerOf(const sockaddr_storage& address) {
  const std::string host = HostOf(address);
  return address.ss_family == AF_INET6 && !IsMapped(address)
             ? absl::StrCat("ipv6:%5B", absl::StrReplaceAll(host, {{"%", "%25"}}),
                            "%5D:", PeerPort(address))
             : absl::StrCat("ipv4:", host, ":", PeerPort(address));
}

void Uncount(const std::string& address, std::map<std::string, int>* counts) {
  const auto found = counts->find(address);
  if (found != counts->end() && --found->second == 0) counts->erase(found);
}

}  // namespace

TcpPort::Limits TcpPort::LimitsOf(bool has_tls) {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const int all = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
  Limits limits;
  limits.fd_max = all - std::clamp(all / 4, std::min(kKeptMin, all / 2), kKeptMax);
  // So that strangers leave room for connections whose handshake has ended.
  limits.silent_max = std::min(limits.silent_max, limits.fd_max / 4);
  limits.unproven_max = has_tls ? std::min(limits.unproven_max, limits.fd_max / 2) : 0;
  return limits;
}

absl::StatusOr<std::unique_ptr<TcpPort>> TcpPort::Listen(const client::Address& address,
                                                         const Limits& limits) {
  base::UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return base::ErrnoStatus(errno, "eventfd");
  auto listeners = base::ListenTcpEverywhere(address.host, address.port, kTcpBacklog);
  if (!listeners.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(address.text, ": cannot listen there: ", listeners.status().message(),
                     "; give another address with --listen"));
  }
  return std::unique_ptr<TcpPort>(new TcpPort(*std::move(listeners), std::move(stop), limits));
}

TcpPort::TcpPort(std::vector<base::UniqueFd> listeners, base::UniqueFd stop, const Limits& limits)
    : listeners_(std::move(listeners)),
      stop_(std::move(stop)),
      limits_(limits),
      port_(base::PortOf(listeners_.front().get())) {}

TcpPort::~TcpPort() { Stop(); }

void TcpPort::Stop() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
}

void TcpPort::Serve(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server) {
  server_ = std::move(server);
  thread_ = std::thread([this] { Run(); });
}

void TcpPort::Run() {
  std::vector<pollfd> entries;
  for (;;) {
    entries = {{stop_.get(), POLLIN, 0}};
    for (const base::UniqueFd& listener : listeners_)
      entries.push_back({listener.get(), POLLIN, 0});
    const size_t begin = entries.size();
    for (const Silent& silent : silent_) entries.push_back({silent.fd.get(), POLLIN, 0});
    const absl::Duration wait = silent_.empty()
                                    ? absl::InfiniteDuration()
                                    : silent_.front().since + limits_.silence_max - TimeNow();
    ::poll(entries.data(), entries.size(), base::PollMilliseconds(wait));
    if (entries[0].revents != 0) return;
    auto place = silent_.begin();
    for (size_t i = begin; i < entries.size(); ++i) {
      const auto next = std::next(place);
      if (entries[i].revents != 0) OnFirstByte(place);
      place = next;
    }
    CloseSilent(TimeNow());
    // A few at a time, so that those who speak are served under a flood of those who do not.
    for (size_t i = 1; i < begin; ++i) {
      const bool waits = entries[i].revents != 0;
      for (int count = 0; waits && count < kAcceptsPerTurn && Accept(entries[i].fd); ++count) {
      }
    }
  }
}

bool TcpPort::Accept(int listener) {
  sockaddr_storage from = {};
  socklen_t size = sizeof(from);
  Silent accepted;
  accepted.fd = base::UniqueFd(
      ::accept4(listener, reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  accepted.listener = listener;
  if (!accepted.fd.valid()) {
    if (errno == EAGAIN) return false;
    if (errno == EINTR || errno == ECONNABORTED) return true;
    Refuse("", absl::StrCat("cannot accept connections: ", std::strerror(errno)));
    pollfd entry = {stop_.get(), POLLIN, 0};
    ::poll(&entry, 1, kTcpPauseMilliseconds);
    return false;
  }
  accepted.address = HostOf(from);
  if (accepted.fd.get() >= limits_.fd_max) {
    Refuse(accepted.address,
           absl::StrCat("all descriptors below ", limits_.fd_max,
                        " are in use, and the others are for the driver's own files; raise the "
                        "limit (LimitNOFILE of the unit, ulimit -Hn)"));
    return true;
  }
  const int yes = 1;  // a report must not wait for the acknowledgement of the one before
  ::setsockopt(accepted.fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  accepted.peer = PeerOf(from);
  accepted.since = TimeNow();
  const int of_address = ++silent_of_[accepted.address];
  silent_.push_back(std::move(accepted));
  const std::string& address = silent_.back().address;
  if (of_address > limits_.silent_of_address_max) {
    const auto is_same = [&](const Silent& silent) { return silent.address == address; };
    Take(std::find_if(silent_.begin(), silent_.end(), is_same));
    Refuse(address, absl::StrCat("has more than ", limits_.silent_of_address_max,
                                 " connections that have sent nothing"));
  } else if (static_cast<int>(silent_.size()) > limits_.silent_max) {
    const Silent oldest = Take(silent_.begin());
    Refuse(oldest.address, absl::StrCat("more than ", limits_.silent_max,
                                        " connections have sent nothing; this is the oldest"));
  }
  return true;
}

TcpPort::Silent TcpPort::Take(Place place) {
  Silent taken = std::move(*place);
  silent_.erase(place);
  Uncount(taken.address, &silent_of_);
  return taken;
}

void TcpPort::CloseSilent(absl::Duration now) {
  while (!silent_.empty() && now - silent_.front().since >= limits_.silence_max) {
    const Silent oldest = Take(silent_.begin());
    Refuse(oldest.address,
           absl::StrCat("sent nothing for ", absl::FormatDuration(limits_.silence_max)));
  }
}

void TcpPort::OnFirstByte(Place place) {
  Silent speaker = Take(place);
  char byte = 0;
  if (::recv(speaker.fd.get(), &byte, 1, MSG_PEEK) <= 0) return;  // it closed the connection
  if (const std::string why = Begin(speaker); !why.empty()) return Refuse(speaker.address, why);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = speaker.listener;
  connection.fd = speaker.fd.release();
  server_->HandleNewConnection(&connection);
}

std::string TcpPort::Begin(const Silent& connection) {
  if (limits_.unproven_max == 0) return "";
  const absl::Duration now = TimeNow();
  const std::lock_guard<std::mutex> lock(mutex_);
  ForgetBegun(now);
  if (static_cast<int>(unproven_.size()) >= limits_.unproven_max) {
    return absl::StrCat(limits_.unproven_max, " connections are in their handshake");
  }
  int& of_address = unproven_of_[connection.address];
  if (of_address >= limits_.unproven_of_address_max) {
    return absl::StrCat("has ", of_address, " connections in their handshake");
  }
  if (!unproven_.try_emplace(connection.peer, Unproven{connection.address, now}).second) return "";
  ++of_address;
  begun_.emplace_back(connection.peer, now);
  return "";
}

void TcpPort::ForgetBegun(absl::Duration now) {
  while (!begun_.empty() && now - begun_.front().second >= limits_.handshake_max) {
    const auto found = unproven_.find(begun_.front().first);
    // A later connection may have the port of an earlier one.
    if (found != unproven_.end() && found->second.since == begun_.front().second) {
      Uncount(found->second.address, &unproven_of_);
      unproven_.erase(found);
    }
    begun_.pop_front();
  }
}

void TcpPort::OnCall(const std::string& peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = unproven_.find(peer);
  if (found == unproven_.end()) return;
  Uncount(found->second.address, &unproven_of_);
  unproven_.erase(found);
}

void TcpPort::Refuse(const std::string& address, const std::string& why) {
  Refused& refused = refused_[why];
  ++refused.count;
  const absl::Duration now = TimeNow();
  if (now < refused.warn_at) return;
  const std::string others =
      refused.count == 1 ? "" : absl::StrCat(" (", refused.count - 1, " more since the last line)");
  base::LogWarning(absl::StrCat("closed a connection", address.empty() ? "" : " from ", address,
                                ": ", why, others));
  refused = {.count = 0, .warn_at = now + kTcpWarnInterval};
}

}  // namespace megascale::driver
