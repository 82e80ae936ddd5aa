#include "controlplane/driver/service/driver_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "controlplane/address/address.h"
#include "controlplane/driver/listen/listen_address.h"
#include "controlplane/driver/listen/own_port.h"
#include "controlplane/driver/listen/reflection.h"
#include "controlplane/driver/listen/server_limits.h"
#include "controlplane/driver/listen/steady_poller.h"
#include "controlplane/driver/listen/tcp_port.h"
#include "controlplane/driver/service/agent_streams.h"
#include "controlplane/driver/service/background_thread.h"
#include "controlplane/driver/service/driver_loop.h"
#include "controlplane/driver/service/job_service.h"
#include "controlplane/driver/service/last_evidence_watch.h"
#include "controlplane/driver/service/page_server.h"
#include "controlplane/driver/service/page_source.h"
#include "controlplane/driver/service/relay_ports.h"
#include "controlplane/driver/service/suspect_watch.h"
#include "controlplane/driver/storage/counted_log.h"
#include "controlplane/driver/storage/log_backup.h"
#include "controlplane/driver/storage/state_check.h"
#include "controlplane/security/credentials.h"
#include "controlplane/security/grpc_log.h"
#include "controlplane/security/tls_check.h"
#include "proto/agent.grpc.pb.h"
#include "proto/control.grpc.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/socket/own_socket.h"
#include "runtime/base/status.h"
#include "runtime/base/version.h"

namespace megascale::driver {
namespace {

constexpr absl::Duration kShutdownGrace = absl::Milliseconds(500);
constexpr absl::Duration kSignalCheckInterval = absl::Milliseconds(200);
constexpr absl::Duration kGiveBackInterval = absl::Seconds(10);
constexpr int kExchangeRateMax = 1'000'000;  // MB/s
constexpr absl::Duration kLookIntervalMin = absl::Seconds(1);
constexpr absl::Duration kLookIntervalMax = absl::Minutes(10);

// Logs warnings about the driver's connections, for the person who starts it.
void WarnOf(const DriverOptions& options, const client::Address& address) {
  if (options.insecure && !address.is_unix()) {
    base::LogWarning(absl::StrCat("--insecure: everybody on this machine can use ", address.text,
                                  " and run jobs as this user"));
  }
  if (!options.tls.any()) return;
  const std::string expiry = security::ExpiryWarning(options.tls, absl::Now());
  if (!expiry.empty()) base::LogWarning(expiry);
}

megascale::agent::v1::TestKind TestKindOf(const std::string& word, bool is_local) {
  if (word == "off") return megascale::agent::v1::TEST_KIND_UNSPECIFIED;
  if (word == "quick" || (word.empty() && is_local)) return megascale::agent::v1::TEST_KIND_QUICK;
  return megascale::agent::v1::TEST_KIND_FULL;
}

// The services, as health and reflection name them.
std::vector<std::string> ServiceNames() {
  return {megascale::control::v1::JobService::service_full_name(),
          megascale::agent::v1::AgentService::service_full_name(), "grpc.health.v1.Health",
          "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"};
}

// The token is for the driver's user alone, and others may read the log, which may be the journal.
void TellPage(const PageServer& page, const std::string& state_directory) {
  base::LogInfo(absl::StrCat("the page: ", page.address(), "; the URL with its token is in ",
                             state_directory, "/", kPageUrlFile));
  if (::isatty(STDERR_FILENO) == 1) std::fprintf(stderr, "the page: %s\n", page.url().c_str());
}

// From this size on an allocation is a mapping of its own, which goes back to the system when it is
// freed. If this is not set, the C library raises the size with each large message, and what it
// frees of them at the end of its heaps it keeps.
constexpr int kMappedBytes = 1 << 20;

// Gives memory back to the system that is free between what is in use. Cost: looks at every heap.
void GiveMemoryBack() {
  constexpr size_t kFreeBytesMax = size_t{32} << 20;
  if (::mallinfo2().fordblks > kFreeBytesMax) ::malloc_trim(0);
}

sigset_t EndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace

constexpr absl::Duration kSuspectFetchTimeout = absl::Seconds(2);

// Members are destroyed from the last to the first: the server before what it serves.
struct DriverServer::Impl {
  client::Address address;
  SteadyPoller poller;
  std::unique_ptr<TcpPort> tcp_port;  // null: a Unix socket
  std::unique_ptr<AgentStreams> agents;
  std::unique_ptr<DriverLoop> loop;
  BackgroundThread background;  // the loop's; it ends before the log is closed
  std::unique_ptr<grpc::Service> jobs;
  std::unique_ptr<grpc::Service> reflection;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<OwnPort> own_port;  // null: TCP
  std::unique_ptr<PageServer> page;   // null: there is no page
  std::unique_ptr<SuspectWatch> watch;
  std::unique_ptr<LastEvidenceWatch> last_evidence;

  ~Impl() {
    watch.reset();
    last_evidence.reset();
    if (loop != nullptr) loop->Stop();
    own_port.reset();
    if (tcp_port != nullptr) tcp_port->Stop();
    page.reset();
    if (server == nullptr) return;
    server->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kShutdownGrace));
    server->Wait();
  }

  // Refuses an address on which the driver cannot listen, before anything else is made.
  absl::Status CheckAddress(const DriverOptions& options);
  absl::Status MakeLoop(const DriverOptions& given);
  absl::Status Listen(const DriverOptions& options);
  absl::Status ServePage(const DriverOptions& options);
  // The address, with the port that the system chose if port 0 was requested.
  std::string ListenAddress() const;
};

absl::Status DriverServer::Impl::CheckAddress(const DriverOptions& options) {
  ASSIGN_OR_RETURN(address, client::ParseAddress(options.listen_address));
  RETURN_IF_ERROR(security::MakeServerCredentials(address, options.tls, options.insecure).status());
  return address.is_unix() ? PrepareSocket(address.unix_path) : CheckTcpAddress(address);
}

std::string DriverServer::Impl::ListenAddress() const {
  if (address.is_unix() || address.port != 0) return address.text;
  return absl::StrCat(address.text.substr(0, address.text.rfind(':') + 1), tcp_port->port());
}

absl::Status DriverServer::Impl::MakeLoop(const DriverOptions& given) {
  if (const absl::Status made = base::MakeDirectories(given.state_directory); !made.ok()) {
    return absl::Status(made.code(), absl::StrCat(made.message(), "; give another --state-dir"));
  }
  RETURN_IF_ERROR(base::CheckTrustedFolder(given.state_directory, "give another --state-dir"));
  DriverShell::Options options;
  options.state_directory = std::filesystem::absolute(given.state_directory).string();
  options.retention = given.retention;
  options.node_timeout = given.node_timeout;
  options.machine_tests = TestKindOf(given.machine_tests, address.is_unix());
  options.agents_ended = given.agents_ended;
  options.exchange_rate = given.exchange_rate * 1e6;
  options.slots_max = static_cast<int>(given.slots_max);
  options.new_nodes_per_hour = given.new_nodes_per_hour;
  options.names_nodes = given.join == "known";
  options.files = &RealJobFiles();
  options.clock = &base::RealClock();
  options.do_later = [this](std::function<void()> work) { background.Do(std::move(work)); };
  options.secret = RandomSecret();
  RETURN_IF_ERROR(CheckIsNoBackup(options.state_directory));
  RETURN_IF_ERROR(CheckCount(options.state_directory, options.files));
  ASSIGN_OR_RETURN(options.log, OpenRocksDbLog(absl::StrCat(options.state_directory, "/log")));
  RETURN_IF_ERROR(CheckJobFolders(options.state_directory, options.log.get()));
  options.log =
      CountEvents(std::move(options.log), CountPathOf(options.state_directory), options.files);
  options.on_attempts = [streams =
                             agents.get()](const std::map<std::string, RunningAttempt>& attempts) {
    streams->SetAttempts(attempts);
  };
  ASSIGN_OR_RETURN(loop, DriverLoop::Create(std::move(options)));
  return absl::OkStatus();
}

absl::Status DriverServer::Impl::Listen(const DriverOptions& options) {
  ASSIGN_OR_RETURN(auto credentials,
                   security::MakeServerCredentials(address, options.tls, options.insecure));
  WarnOf(options, address);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  if (address.is_unix()) {
    RETURN_IF_ERROR(PrepareSocket(address.unix_path));
    ASSIGN_OR_RETURN(own_port, OwnPort::Listen(address.unix_path));
  } else {
    ASSIGN_OR_RETURN(tcp_port, TcpPort::Listen(address, TcpPort::LimitsOf(options.tls.any())));
    agents->OnCall([port = tcp_port.get()](const std::string& peer) { port->OnCall(peer); });
  }
  grpc::ServerBuilder builder;
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  SetLimits(&builder);
  // Agents on TCP ping every 10 s to notice a cut connection; gRPC must not take that for abuse.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.RegisterService(jobs.get());
  builder.RegisterService(agents->Serve(loop.get()));
  reflection = MakeReflection(ServiceNames());
  builder.RegisterService(reflection.get());
  server = builder.BuildAndStart();
  if (server == nullptr) {
    return absl::UnavailableError(absl::StrCat(address.text, ": gRPC does not start"));
  }
  for (const std::string& name : ServiceNames()) {
    server->GetHealthCheckService()->SetServingStatus(name, true);
  }
  if (own_port != nullptr) {
    own_port->Serve(std::move(acceptor));
  } else {
    tcp_port->Serve(std::move(acceptor));
  }
  return absl::OkStatus();
}

absl::Status DriverServer::Impl::ServePage(const DriverOptions& options) {
  if (options.http_address.empty()) return absl::OkStatus();
  PageServerOptions served;
  served.address = options.http_address;
  served.state_directory = options.state_directory;
  served.tls = options.tls;
  ASSIGN_OR_RETURN(page, PageServer::Start(served, MakePageSource(loop.get(), agents.get())));
  return absl::OkStatus();
}

DriverServer::DriverServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DriverServer::~DriverServer() = default;

namespace {

// What agents may claim, and how many may come.
absl::Status CheckJoinOptions(const DriverOptions& options) {
  if (options.slots_max < 1 || options.slots_max > protocol::kSlotsMax) {
    return absl::InvalidArgumentError(absl::StrCat("--slots-max: ", options.slots_max,
                                                   " is out of range; expected 1 to ",
                                                   protocol::kSlotsMax));
  }
  if (options.new_nodes_per_hour < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--new-nodes-per-hour: ", options.new_nodes_per_hour, ": expected 1 or more"));
  }
  if (options.join != "any" && options.join != "known") {
    return absl::InvalidArgumentError(
        absl::StrCat("--join: unknown value '", options.join, "'; expected any or known"));
  }
  return absl::OkStatus();
}

absl::Status CheckDriverOptions(const DriverOptions& options) {
  if (options.state_directory.empty()) {
    return absl::InvalidArgumentError(
        "--state-dir: expected the directory that keeps the driver's state, found ''");
  }
  if (options.retention.newest < 0 || options.retention.age < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--keep-jobs ", options.retention.newest, ", --keep-jobs-for ",
                     absl::FormatDuration(options.retention.age), ": expected 0 or more"));
  }
  if (options.node_timeout < FailureDetector::kNodeTimeoutMin ||
      options.node_timeout > FailureDetector::kNodeTimeoutMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--node-timeout: ", absl::FormatDuration(options.node_timeout),
        " is out of range; expected ", absl::FormatDuration(FailureDetector::kNodeTimeoutMin),
        " to ", absl::FormatDuration(FailureDetector::kNodeTimeoutMax)));
  }
  const std::string& tests = options.machine_tests;
  if (!tests.empty() && tests != "off" && tests != "quick" && tests != "full") {
    return absl::InvalidArgumentError(
        absl::StrCat("--machine-tests: unknown value '", tests, "'; expected off, quick or full"));
  }
  if (!(options.exchange_rate >= 0 && options.exchange_rate <= kExchangeRateMax)) {
    return absl::InvalidArgumentError(absl::StrCat("--exchange-rate: ", options.exchange_rate,
                                                   " is out of range; expected 0 to ",
                                                   kExchangeRateMax, " MB/s"));
  }
  RETURN_IF_ERROR(CheckJoinOptions(options));
  if (options.look_interval < kLookIntervalMin || options.look_interval > kLookIntervalMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--look-every: ", absl::FormatDuration(options.look_interval),
                     " is out of range; expected ", absl::FormatDuration(kLookIntervalMin), " to ",
                     absl::FormatDuration(kLookIntervalMax)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DriverServer>> DriverServer::Start(const DriverOptions& options) {
  RETURN_IF_ERROR(CheckDriverOptions(options));
  auto impl = std::make_unique<Impl>();
  RETURN_IF_ERROR(impl->CheckAddress(options));
  impl->agents = std::make_unique<AgentStreams>();
  RETURN_IF_ERROR(impl->MakeLoop(options));
  impl->jobs = MakeJobService(impl->loop.get(), impl->agents.get());
  RETURN_IF_ERROR(impl->ServePage(options));
  RETURN_IF_ERROR(impl->Listen(options));
  impl->loop->Start();
  const auto spans_of = [loop = impl->loop.get(),
                         agents = impl->agents.get()](const std::string& job_id) {
    return RelayPorts<SpanStreamPorts>(loop, agents, job_id, kSuspectFetchTimeout);
  };
  const auto evidence_of = [loop = impl->loop.get(),
                            agents = impl->agents.get()](const std::string& job_id) {
    return RelayPorts<EvidenceStreamPorts>(loop, agents, job_id, kSuspectFetchTimeout);
  };
  impl->watch = std::make_unique<SuspectWatch>(
      impl->loop.get(), options.look_interval, [spans_of, evidence_of](const std::string& job_id) {
        return SlowPorts{.spans = spans_of(job_id), .metrics = evidence_of(job_id)};
      });
  impl->last_evidence = std::make_unique<LastEvidenceWatch>(
      impl->loop.get(), [spans_of, evidence_of](const std::string& job_id) {
        return std::pair(spans_of(job_id), evidence_of(job_id));
      });
  base::LogInfo(absl::StrCat("megascale ", base::kVersion, " listens on ", impl->ListenAddress()));
  if (impl->page != nullptr) TellPage(*impl->page, options.state_directory);
  return std::unique_ptr<DriverServer>(new DriverServer(std::move(impl)));
}

absl::Status DriverServer::WaitForFailure(absl::Duration timeout) {
  return impl_->loop->WaitForFailure(timeout);
}

bool DriverServer::HasBusyNodes() const {
  const auto cluster = impl_->loop->GetCluster();
  if (!cluster.ok()) return false;
  return std::any_of(cluster->nodes().begin(), cluster->nodes().end(),
                     [](const auto& node) { return node.alive() && node.num_slots_used() > 0; });
}

int DriverServer::port() const { return impl_->tcp_port == nullptr ? 0 : impl_->tcp_port->port(); }

std::string DriverServer::page_url() const {
  return impl_->page == nullptr ? "" : impl_->page->url();
}

absl::Status RunDriver(const DriverOptions& options) {
  security::LogRefusals();
  ::umask(077);  // what it keeps tells what is trained and on what
  ::mallopt(M_MMAP_THRESHOLD, kMappedBytes);
  const sigset_t signals = EndSignals();
  if (const int error = ::pthread_sigmask(SIG_BLOCK, &signals, nullptr); error != 0) {
    return base::ErrnoStatus(error, "block signals");
  }
  base::RaiseDescriptorLimit();  // each connection takes one, and each job that has not ended
  ASSIGN_OR_RETURN(const auto server, DriverServer::Start(options));
  const timespec nothing = {};
  absl::Duration give_back_at;
  absl::Duration end_at = absl::InfiniteDuration();  // finite after SIGTERM
  for (;;) {
    RETURN_IF_ERROR(server->WaitForFailure(kSignalCheckInterval));
    if (const absl::Duration now = base::RealClock().Monotonic(); now >= give_back_at) {
      GiveMemoryBack();
      give_back_at = now + kGiveBackInterval;
    }
    const absl::Duration now = base::RealClock().Monotonic();
    const bool ends = end_at != absl::InfiniteDuration();
    if (ends && (now >= end_at || !server->HasBusyNodes())) return absl::OkStatus();
    const int signal = ::sigtimedwait(&signals, nullptr, &nothing);
    if (signal < 0) continue;
    if (signal == SIGTERM && !ends && options.drain_timeout > absl::ZeroDuration()) {
      base::LogInfo(absl::StrCat("SIGTERM: ends once no machine has ranks, in ",
                                 absl::FormatDuration(options.drain_timeout), " at the latest"));
      end_at = now + options.drain_timeout;
      continue;
    }
    base::LogInfo(
        absl::StrCat(signal == SIGINT ? "SIGINT" : "SIGTERM", ": ends; agents and workers go on"));
    return absl::OkStatus();
  }
}

}  // namespace megascale::driver
