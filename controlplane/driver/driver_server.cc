#include "controlplane/driver/driver_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "controlplane/client/address.h"
#include "controlplane/driver/agent_service.h"
#include "controlplane/driver/driver_loop.h"
#include "controlplane/driver/job_service.h"
#include "controlplane/driver/listen_address.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/base/version.h"

namespace megascale::driver {
namespace {

constexpr size_t kPemBytesMax = 1 << 20;
constexpr int kMessageBytesMax = 64 << 20;
constexpr absl::Duration kShutdownGrace = absl::Milliseconds(500);
constexpr absl::Duration kSignalCheckInterval = absl::Milliseconds(200);

bool HasTls(const TlsFiles& tls) {
  return !tls.ca.empty() || !tls.certificate.empty() || !tls.key.empty();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> Mutual(const TlsFiles& tls) {
  if (tls.ca.empty() || tls.certificate.empty() || tls.key.empty()) {
    return absl::InvalidArgumentError(
        "mutual TLS needs all three files: --tls-ca, --tls-cert and --tls-key");
  }
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  ASSIGN_OR_RETURN(options.pem_root_certs, base::ReadFile(tls.ca, kPemBytesMax));
  grpc::SslServerCredentialsOptions::PemKeyCertPair pair;
  ASSIGN_OR_RETURN(pair.private_key, base::ReadFile(tls.key, kPemBytesMax));
  ASSIGN_OR_RETURN(pair.cert_chain, base::ReadFile(tls.certificate, kPemBytesMax));
  options.pem_key_cert_pairs.push_back(std::move(pair));
  return grpc::SslServerCredentials(options);
}

// Nothing listens in the clear beyond this machine.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ChooseCredentials(
    const DriverOptions& options, const client::Address& address) {
  if (address.is_unix()) return grpc::InsecureServerCredentials();
  if (HasTls(options.tls)) return Mutual(options.tls);
  if (!options.insecure) {
    return absl::InvalidArgumentError(
        absl::StrCat(address.text,
                     ": TCP needs mutual TLS (--tls-ca, --tls-cert, --tls-key), or "
                     "--insecure on a loopback address"));
  }
  if (!address.loopback) {
    return absl::InvalidArgumentError(
        absl::StrCat(address.text,
                     ": --insecure is for loopback addresses only (127.0.0.1, "
                     "[::1], localhost); use mutual TLS"));
  }
  base::LogWarning(absl::StrCat("--insecure: everybody on this machine can use ", address.text,
                                " and run jobs as this user"));
  return grpc::InsecureServerCredentials();
}

sigset_t EndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace

// Members are destroyed from the last to the first: the server before what it serves.
struct DriverServer::Impl {
  client::Address address;
  std::unique_ptr<AgentStreams> agents;
  std::unique_ptr<DriverLoop> loop;
  std::unique_ptr<grpc::Service> jobs;
  std::unique_ptr<grpc::Server> server;
  int port = 0;

  ~Impl() {
    if (loop != nullptr) loop->Stop();
    if (server == nullptr) return;
    server->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kShutdownGrace));
    server->Wait();
  }

  absl::Status MakeLoop(const std::string& state_directory);
  absl::Status Listen(const DriverOptions& options);
};

absl::Status DriverServer::Impl::MakeLoop(const std::string& state_directory) {
  RETURN_IF_ERROR(base::MakeDirectories(state_directory));
  DriverLoop::Options options;
  options.state_directory = std::filesystem::absolute(state_directory).string();
  options.clock = &base::RealClock();
  ASSIGN_OR_RETURN(options.log, OpenRocksDbLog(absl::StrCat(options.state_directory, "/log")));
  options.on_attempts = [streams = agents.get()](const std::map<std::string, int64_t>& attempts) {
    streams->SetAttempts(attempts);
  };
  ASSIGN_OR_RETURN(loop, DriverLoop::Create(std::move(options)));
  return absl::OkStatus();
}

absl::Status DriverServer::Impl::Listen(const DriverOptions& options) {
  ASSIGN_OR_RETURN(auto credentials, ChooseCredentials(options, address));
  if (address.is_unix()) RETURN_IF_ERROR(PrepareSocket(address.unix_path));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address.text, credentials, &port);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Agents on TCP ping every 10 s, so that a cut connection is noticed; that is no abuse.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.RegisterService(jobs.get());
  builder.RegisterService(agents->Serve(loop.get()));
  server = builder.BuildAndStart();
  if (server == nullptr || (!address.is_unix() && port == 0)) {
    return absl::UnavailableError(
        absl::StrCat(address.text,
                     ": cannot listen there; is the port taken? Give another address with "
                     "--listen"));
  }
  if (address.is_unix()) {
    port = 0;
    if (::chmod(address.unix_path.c_str(), 0600) != 0) {
      return base::ErrnoStatus(errno, address.unix_path);
    }
  }
  return absl::OkStatus();
}

DriverServer::DriverServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DriverServer::~DriverServer() = default;

absl::StatusOr<std::unique_ptr<DriverServer>> DriverServer::Start(const DriverOptions& options) {
  if (options.state_directory.empty()) {
    return absl::InvalidArgumentError("--state: give the directory that keeps the driver's state");
  }
  auto impl = std::make_unique<Impl>();
  ASSIGN_OR_RETURN(impl->address, client::ParseAddress(options.listen_address));
  impl->agents = std::make_unique<AgentStreams>();
  RETURN_IF_ERROR(impl->MakeLoop(options.state_directory));
  impl->jobs = MakeJobService(impl->loop.get(), impl->agents.get());
  RETURN_IF_ERROR(impl->Listen(options));
  impl->loop->Start();
  base::LogInfo(absl::StrCat("megascale ", base::kVersion, " listens on ", impl->address.text));
  return std::unique_ptr<DriverServer>(new DriverServer(std::move(impl)));
}

absl::Status DriverServer::WaitForFailure(absl::Duration timeout) {
  return impl_->loop->WaitForFailure(timeout);
}

int DriverServer::port() const { return impl_->port; }

absl::Status RunDriver(const DriverOptions& options) {
  const sigset_t signals = EndSignals();
  if (const int error = ::pthread_sigmask(SIG_BLOCK, &signals, nullptr); error != 0) {
    return base::ErrnoStatus(error, "block signals");
  }
  ASSIGN_OR_RETURN(const auto server, DriverServer::Start(options));
  const timespec nothing = {};
  for (;;) {
    RETURN_IF_ERROR(server->WaitForFailure(kSignalCheckInterval));
    const int signal = ::sigtimedwait(&signals, nullptr, &nothing);
    if (signal < 0) continue;
    base::LogInfo(
        absl::StrCat(signal == SIGINT ? "SIGINT" : "SIGTERM", ": ends; agents and workers go on"));
    return absl::OkStatus();
  }
}

}  // namespace megascale::driver
