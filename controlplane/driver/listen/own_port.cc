#include "controlplane/driver/listen/own_port.h"

#include <grpcpp/server_builder.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/socket/own_socket.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

constexpr int kBacklog = 4096;  // the kernel lowers it to its own limit
constexpr absl::Duration kWarnInterval = absl::Minutes(1);
// Pause when no descriptor is free.
constexpr int kPauseMilliseconds = 100;

}  // namespace

absl::StatusOr<std::unique_ptr<OwnPort>> OwnPort::Listen(const std::string& path) {
  base::UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return base::ErrnoStatus(errno, "eventfd");
  ASSIGN_OR_RETURN(base::UniqueFd listener, base::ListenOwnSocket(path, kBacklog));
  return std::unique_ptr<OwnPort>(new OwnPort(path, std::move(listener), std::move(stop)));
}

OwnPort::OwnPort(std::string path, base::UniqueFd listener, base::UniqueFd stop)
    : path_(std::move(path)), listener_(std::move(listener)), stop_(std::move(stop)) {}

OwnPort::~OwnPort() {
  ::unlink(path_.c_str());
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
}

void OwnPort::Serve(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server) {
  server_ = std::move(server);
  thread_ = std::thread([this] { Run(); });
}

void OwnPort::Run() {
  for (;;) {
    std::array<pollfd, 2> entries = {{{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}}};
    ::poll(entries.data(), entries.size(), -1);
    if (entries[0].revents != 0) return;
    if (entries[1].revents != 0) Accept();
  }
}

void OwnPort::Accept() {
  base::UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
    Warn(absl::StrCat(path_, ": cannot accept connections: ", std::strerror(errno)));
    pollfd entry = {stop_.get(), POLLIN, 0};
    ::poll(&entry, 1, kPauseMilliseconds);
    return;
  }
  const absl::Status checked =
      base::CheckOwnPeer(socket.get(), path_, "it must run as the driver's user");
  if (!checked.ok()) return Warn(absl::StrCat("refused a connection: ", checked.message()));
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = listener_.get();
  connection.fd = socket.release();
  server_->HandleNewConnection(&connection);
}

void OwnPort::Warn(absl::string_view why) {
  const absl::Duration now = base::RealClock().Monotonic();
  if (now < warn_at_) return;
  warn_at_ = now + kWarnInterval;
  base::LogWarning(why);
}

}  // namespace megascale::driver
