#include "controlplane/security/driver_channel.h"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/create_channel_posix.h>

#include <mutex>

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
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  std::mutex mutex;
  std::shared_ptr<grpc::Channel> tcp;  // null: a Unix socket

  std::shared_ptr<grpc::Channel> MakeTcp() const {
    // Channels of one address would share their connection, and gRPC's wait before the next one.
    grpc::ChannelArguments own = arguments;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(options.address.text, credentials, own);
  }
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
  auto impl = std::make_unique<Impl>();
  ASSIGN_OR_RETURN(impl->credentials, MakeChannelCredentials(options.address, options.tls,
                                                             options.insecure, options.role));
  impl->options = options;
  impl->arguments = arguments;
  if (!options.address.is_unix()) impl->tcp = impl->MakeTcp();
  return std::unique_ptr<DriverChannel>(new DriverChannel(std::move(impl)));
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> DriverChannel::Connect() {
  if (!impl_->options.address.is_unix()) {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    return impl_->tcp;
  }
  ASSIGN_OR_RETURN(base::UniqueFd socket, impl_->Dial());
  return grpc::CreateCustomInsecureChannelFromFd(impl_->options.address.text, socket.release(),
                                                 impl_->arguments);
}

// To reset a channel's backoff does not do: its policy goes on to wait.
void DriverChannel::ConnectSoon() {
  if (impl_->options.address.is_unix()) return;
  std::shared_ptr<grpc::Channel> made = impl_->MakeTcp();
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->tcp.swap(made);
}

absl::Status DriverChannel::Check() {
  return impl_->options.address.is_unix() ? impl_->Dial().status() : absl::OkStatus();
}

}  // namespace megascale::security
