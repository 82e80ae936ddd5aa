#include "controlplane/security/driver_channel.h"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/create_channel_posix.h>

#include "absl/strings/str_cat.h"
#include "controlplane/security/credentials.h"
#include "runtime/base/socket/own_socket.h"
#include "runtime/base/status.h"

namespace megascale::security {
namespace {

std::string AdviceTo(Role role) {
  return role == Role::kAgent
             ? "run the agent as the user who runs its driver, or name another driver with "
               "--driver or MEGASCALE_ADDRESS"
             : "run this as the user who runs the driver, or name another driver with --address "
               "or MEGASCALE_ADDRESS";
}

}  // namespace

struct DriverChannel::Impl {
  DriverChannelOptions options;
  grpc::ChannelArguments arguments;
  std::shared_ptr<grpc::Channel> tcp;  // null: a Unix socket

  absl::StatusOr<base::UniqueFd> Dial() const {
    absl::StatusOr<base::UniqueFd> socket = base::ConnectOwnSocket(
        options.address.unix_path, options.queue_timeout, AdviceTo(options.role));
    if (absl::IsPermissionDenied(socket.status())) {
      return absl::UnauthenticatedError(socket.status().message());
    }
    if (!socket.ok()) return absl::UnavailableError(socket.status().message());
    return socket;
  }
};

DriverChannel::DriverChannel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DriverChannel::~DriverChannel() = default;

absl::StatusOr<std::unique_ptr<DriverChannel>> DriverChannel::Create(
    const DriverChannelOptions& options, const grpc::ChannelArguments& arguments) {
  ASSIGN_OR_RETURN(
      const std::shared_ptr<grpc::ChannelCredentials> credentials,
      MakeChannelCredentials(options.address, options.tls, options.insecure, options.role));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->arguments = arguments;
  if (!options.address.is_unix()) {
    impl->tcp = grpc::CreateCustomChannel(options.address.text, credentials, arguments);
  }
  return std::unique_ptr<DriverChannel>(new DriverChannel(std::move(impl)));
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> DriverChannel::Connect() {
  if (impl_->tcp != nullptr) return impl_->tcp;
  ASSIGN_OR_RETURN(base::UniqueFd socket, impl_->Dial());
  return grpc::CreateCustomInsecureChannelFromFd(impl_->options.address.text, socket.release(),
                                                 impl_->arguments);
}

void DriverChannel::ConnectSoon() const {
  if (impl_->tcp != nullptr) grpc::experimental::ChannelResetConnectionBackoff(impl_->tcp.get());
}

absl::Status DriverChannel::Check() {
  return impl_->tcp != nullptr ? absl::OkStatus() : impl_->Dial().status();
}

}  // namespace megascale::security
