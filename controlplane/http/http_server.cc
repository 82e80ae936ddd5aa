#include "controlplane/http/http_server.h"

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "controlplane/address/address.h"
#include "controlplane/http/request_guard.h"
#include "controlplane/security/certificate.h"
#include "controlplane/security/tls_check.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/socket/listen_tcp.h"
#include "runtime/base/status.h"
#include "runtime/base/stop_signal.h"

namespace megascale::http {
namespace {

constexpr size_t kRequestBytesMax = size_t{32} << 10;
constexpr absl::Duration kRequestTime = absl::Seconds(10);
constexpr absl::Duration kAnswerTime = absl::Seconds(30);
constexpr absl::Duration kReaperInterval = absl::Seconds(1);
constexpr unsigned kSilenceSeconds = 30;
constexpr size_t kEventBlockBytes = size_t{64} << 10;
// An empty comment, so that a client that is gone is noticed.
constexpr char kKeepAlive[] = ":\n\n";

// What a client may make of an answer: text and pictures of this server alone, in no frame.
constexpr char kContentPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// A client that has a connection. `deadline`: until then the present part has to be over.
struct Client {
  int fd = -1;
  absl::Duration deadline;
  absl::Duration since;
  bool is_known = false;    // it has shown the token
  bool is_closing = false;  // its thread has not seen that yet
};

absl::StatusOr<base::UniqueFd> Listen(const client::Address& address) {
  auto socket = base::ListenTcp(address.host, address.port, /*backlog=*/64);
  if (socket.ok()) return socket;
  return absl::FailedPreconditionError(
      absl::StrCat("--http ", address.text, ": cannot listen there: ", socket.status().message(),
                   "; give another address"));
}

// True if the client's certificate is signed by our authority and is a user's.
bool IsUser(MHD_Connection* connection) {
  const MHD_ConnectionInfo* info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
  if (info == nullptr) return false;
  auto* session = static_cast<gnutls_session_t>(info->tls_session);
  unsigned failure = 0;
  if (gnutls_certificate_verify_peers2(session, &failure) != GNUTLS_E_SUCCESS || failure != 0) {
    return false;
  }
  unsigned count = 0;
  const gnutls_datum_t* chain = gnutls_certificate_get_peers(session, &count);
  if (chain == nullptr || count == 0) return false;
  gnutls_datum_t pem = {};
  if (gnutls_pem_base64_encode2("CERTIFICATE", chain, &pem) != GNUTLS_E_SUCCESS) return false;
  const auto release = absl::MakeCleanup([&] { gnutls_free(pem.data); });
  const auto certificate = security::DescribeCertificate(
      absl::string_view(reinterpret_cast<const char*>(pem.data), pem.size));
  return certificate.ok() && certificate->role == security::Role::kUser;
}

std::string Header(MHD_Connection* connection, const char* name) {
  const char* value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
  return value == nullptr ? "" : value;
}

MHD_Result TakeArgument(void* query, MHD_ValueKind, const char* name, const char* value) {
  static_cast<std::map<std::string, std::string>*>(query)->emplace(name,
                                                                   value == nullptr ? "" : value);
  return MHD_YES;
}

Response Refusal(Verdict verdict) {
  switch (verdict) {
    case Verdict::kBadMethod:
      return {.status = 405, .body = "this server only answers GET\n"};
    case Verdict::kWrongHost:
      return {.status = 421,
              .body =
                  "the Host header names another server; open the address that the driver "
                  "printed\n"};
    case Verdict::kWrongOrigin:
      return {.status = 403, .body = "requests of other sites are refused\n"};
    default:
      return {.status = 401,
              .body =
                  "the token is missing or wrong; open the URL that the driver printed when it "
                  "started, or send `Authorization: Bearer TOKEN`; the token is in the file "
                  "http-token of the driver's state directory\n"};
  }
}

}  // namespace

struct HttpServer::Impl {
  HttpOptions options;
  client::Address address;
  security::TlsPems pems;
  std::unique_ptr<RequestGuard> guard;
  int port = 0;
  MHD_Daemon* daemon = nullptr;
  base::StopSignal stop;
  std::mutex mutex;
  std::map<const void*, Client> clients;  // by libmicrohttpd's connection
  std::thread reaper;

  ~Impl();
  absl::Status Serve();
  void Reap();
  void SetDeadline(const MHD_Connection* connection, absl::Duration time);
  // Requires: the mutex is held.
  void CloseOldestStranger();
  // Notes that the client has shown the token; false: there are too many clients that have.
  bool Admit(const MHD_Connection* connection);
  MHD_Result Answer(MHD_Connection* connection, const char* path, const char* method);
  MHD_Result Send(MHD_Connection* connection, const Response& response, const std::string& cookie,
                  const std::string& location);
  MHD_Result SendEvents(MHD_Connection* connection, std::unique_ptr<EventSource> events);
};

namespace {

// The answer that is a stream of events.
struct EventStream {
  HttpServer::Impl* server = nullptr;
  MHD_Connection* connection = nullptr;
  std::unique_ptr<EventSource> events;
  std::string rest = kKeepAlive;  // not sent yet
};

MHD_Result TakeRequest(void* self, MHD_Connection* connection, const char* path, const char* method,
                       const char*, const char*, size_t* body_bytes, void** state) {
  // The first call has the head alone. What asks for a change is refused there, before its body;
  // everything else is answered in the second call, and a body closes the connection.
  const bool only_reads = std::strcmp(method, "GET") == 0 || std::strcmp(method, "HEAD") == 0;
  if (*state == nullptr && only_reads) {
    *state = self;
    return MHD_YES;
  }
  if (*body_bytes != 0) return MHD_NO;
  return static_cast<HttpServer::Impl*>(self)->Answer(connection, path, method);
}

void NoteConnection(void* self, MHD_Connection* connection, void**,
                    MHD_ConnectionNotificationCode what) {
  auto& impl = *static_cast<HttpServer::Impl*>(self);
  const std::lock_guard<std::mutex> lock(impl.mutex);
  if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
    impl.clients.erase(connection);
    return;
  }
  const MHD_ConnectionInfo* info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  if (info == nullptr) return;
  const absl::Duration now = base::RealClock().Monotonic();
  impl.clients[connection] = {.fd = info->connect_fd, .deadline = now + kRequestTime, .since = now};
  impl.CloseOldestStranger();
}

void NoteDone(void* self, MHD_Connection* connection, void**, MHD_RequestTerminationCode) {
  static_cast<HttpServer::Impl*>(self)->SetDeadline(connection, kAnswerTime);
}

}  // namespace

HttpServer::Impl::~Impl() {
  stop.Notify();
  if (daemon != nullptr) MHD_stop_daemon(daemon);
  if (reaper.joinable()) reaper.join();
}

// Ends connections that take too long. libmicrohttpd's own timeout only sees silence: a client that
// sends a byte every few seconds would hold its thread for ever.
void HttpServer::Impl::Reap() {
  while (!stop.WaitFor(kReaperInterval)) {
    const absl::Duration now = base::RealClock().Monotonic();
    const std::lock_guard<std::mutex> lock(mutex);
    for (auto& [connection, client] : clients) {
      if (now > client.deadline) ::shutdown(client.fd, SHUT_RDWR);
    }
  }
}

void HttpServer::Impl::SetDeadline(const MHD_Connection* connection, absl::Duration time) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = clients.find(connection);
  if (found != clients.end()) found->second.deadline = base::RealClock().Monotonic() + time;
}

void HttpServer::Impl::CloseOldestStranger() {
  int num_strangers = 0;
  Client* oldest = nullptr;
  for (auto& [connection, client] : clients) {
    if (client.is_known || client.is_closing) continue;
    ++num_strangers;
    if (oldest == nullptr || client.since < oldest->since) oldest = &client;
  }
  if (num_strangers <= kStrangersMax) return;
  oldest->is_closing = true;
  ::shutdown(oldest->fd, SHUT_RDWR);
}

bool HttpServer::Impl::Admit(const MHD_Connection* connection) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = clients.find(connection);
  if (found == clients.end() || found->second.is_known) return true;
  const auto num_known = std::count_if(clients.begin(), clients.end(),
                                       [](const auto& item) { return item.second.is_known; });
  found->second.is_known = num_known < options.connections_max;
  return found->second.is_known;
}

MHD_Result HttpServer::Impl::Send(MHD_Connection* connection, const Response& response,
                                  const std::string& cookie, const std::string& location) {
  if (response.body.size() > kAnswerBytesMax) {
    return Send(connection,
                {.status = 503,
                 .body = absl::StrCat("the answer would have ", response.body.size(),
                                      " bytes, and this server sends at most ", kAnswerBytesMax,
                                      "; ask for less\n")},
                cookie, location);
  }
  MHD_Response* answer = MHD_create_response_from_buffer(
      response.body.size(), const_cast<char*>(response.body.data()), MHD_RESPMEM_MUST_COPY);
  if (answer == nullptr) return MHD_NO;
  const auto release = absl::MakeCleanup([answer] { MHD_destroy_response(answer); });
  MHD_add_response_header(answer, "Content-Type", response.content_type.c_str());
  MHD_add_response_header(answer, "Content-Security-Policy", kContentPolicy);
  MHD_add_response_header(answer, "X-Content-Type-Options", "nosniff");
  MHD_add_response_header(answer, "Referrer-Policy", "no-referrer");
  MHD_add_response_header(answer, "Cache-Control", "no-store");
  if (!cookie.empty()) MHD_add_response_header(answer, "Set-Cookie", cookie.c_str());
  if (!location.empty()) MHD_add_response_header(answer, "Location", location.c_str());
  return MHD_queue_response(connection, static_cast<unsigned>(response.status), answer);
}

MHD_Result HttpServer::Impl::SendEvents(MHD_Connection* connection,
                                        std::unique_ptr<EventSource> events) {
  auto* stream = new EventStream{this, connection, std::move(events)};
  const auto read = [](void* self, uint64_t, char* buffer, size_t size) -> ssize_t {
    auto& stream = *static_cast<EventStream*>(self);
    while (stream.rest.empty()) {
      if (stream.server->stop.WaitFor(stream.server->options.event_interval)) {
        return MHD_CONTENT_READER_END_OF_STREAM;
      }
      stream.rest = stream.events->Next();
      if (stream.rest.empty()) stream.rest = kKeepAlive;
    }
    // The client has read all before, or this would not be asked for.
    stream.server->SetDeadline(stream.connection, kAnswerTime);
    const size_t sent = std::min(size, stream.rest.size());
    std::copy_n(stream.rest.data(), sent, buffer);
    stream.rest.erase(0, sent);
    return static_cast<ssize_t>(sent);
  };
  const auto free_stream = [](void* self) { delete static_cast<EventStream*>(self); };
  MHD_Response* answer = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, kEventBlockBytes, read,
                                                           stream, free_stream);
  if (answer == nullptr) {
    delete stream;
    return MHD_NO;
  }
  const auto release = absl::MakeCleanup([answer] { MHD_destroy_response(answer); });
  MHD_add_response_header(answer, "Content-Type", "text/event-stream");
  MHD_add_response_header(answer, "Cache-Control", "no-store");
  MHD_add_response_header(answer, "X-Content-Type-Options", "nosniff");
  return MHD_queue_response(connection, MHD_HTTP_OK, answer);
}

MHD_Result HttpServer::Impl::Answer(MHD_Connection* connection, const char* path,
                                    const char* method) {
  SetDeadline(connection, kAnswerTime);
  if (options.tls.any() && !IsUser(connection)) {
    return Send(connection,
                {.status = 403,
                 .body = "a client certificate of the role \"user\" is needed: megascale certs "
                         "issue makes one\n"},
                "", "");
  }
  Request request{.path = path, .query = {}};
  MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, &TakeArgument, &request.query);
  RequestHead head{.method = method,
                   .host = Header(connection, MHD_HTTP_HEADER_HOST),
                   .origin = Header(connection, MHD_HTTP_HEADER_ORIGIN),
                   .cookie = Header(connection, MHD_HTTP_HEADER_COOKIE),
                   .authorization = Header(connection, MHD_HTTP_HEADER_AUTHORIZATION),
                   .token = ""};
  if (const auto token = request.query.extract("token"); !token.empty())
    head.token = token.mapped();
  const Verdict verdict = guard->Judge(head);
  if (verdict == Verdict::kServe && !Admit(connection)) {
    return Send(connection,
                {.status = 503,
                 .body = absl::StrCat("this server serves ", options.connections_max,
                                      " connections, which is the maximum; close some pages\n")},
                "", "");
  }
  if (verdict == Verdict::kSetCookie) {
    return Send(connection, {.status = 303, .body = ""}, guard->SetCookie(), "/");
  }
  if (verdict != Verdict::kServe) return Send(connection, Refusal(verdict), "", "");
  if (auto events = options.events ? options.events(request) : nullptr; events != nullptr) {
    return SendEvents(connection, std::move(events));
  }
  return Send(connection, options.answer(request), "", "");
}

absl::Status HttpServer::Impl::Serve() {
  ASSIGN_OR_RETURN(base::UniqueFd socket, Listen(address));
  port = base::PortOf(socket.get());
  std::vector<std::string> hosts = {address.host};
  if (address.loopback) hosts = {"127.0.0.1", "localhost", "[::1]", address.host};
  if (options.tls.any()) {
    ASSIGN_OR_RETURN(const security::Certificate own,
                     security::DescribeCertificate(pems.certificate));
    hosts.insert(hosts.end(), own.hosts.begin(), own.hosts.end());
  }
  guard = std::make_unique<RequestGuard>(hosts, port, options.tls.any(), options.token);
  std::vector<MHD_OptionItem> tls;
  if (options.tls.any()) {
    tls.push_back({MHD_OPTION_HTTPS_MEM_KEY, 0, pems.key.data()});
    tls.push_back({MHD_OPTION_HTTPS_MEM_CERT, 0, pems.certificate.data()});
    tls.push_back({MHD_OPTION_HTTPS_MEM_TRUST, 0, pems.ca.data()});
  }
  tls.push_back({MHD_OPTION_END, 0, nullptr});
  const unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION |
                         MHD_USE_POLL | MHD_USE_ERROR_LOG | MHD_USE_ITC |
                         (options.tls.any() ? MHD_USE_TLS : 0);
  daemon = MHD_start_daemon(
      flags, static_cast<uint16_t>(port), nullptr, nullptr, &TakeRequest, this,
      MHD_OPTION_EXTERNAL_LOGGER, +[](void*, const char*, va_list) {}, nullptr,
      MHD_OPTION_LISTEN_SOCKET, socket.get(), MHD_OPTION_CONNECTION_LIMIT,
      static_cast<unsigned>(options.connections_max + 2 * kStrangersMax),
      MHD_OPTION_CONNECTION_TIMEOUT, kSilenceSeconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
      kRequestBytesMax, MHD_OPTION_NOTIFY_CONNECTION, &NoteConnection, this,
      MHD_OPTION_NOTIFY_COMPLETED, &NoteDone, this, MHD_OPTION_ARRAY, tls.data(), MHD_OPTION_END);
  if (daemon == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("--http ", address.text, ": the web server does not start"));
  }
  socket.release();  // the daemon closes it
  reaper = std::thread([this] { Reap(); });
  return absl::OkStatus();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  ASSIGN_OR_RETURN(impl->address, client::ParseAddress(options.address));
  if (impl->address.is_unix()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--http ", options.address, ": expected HOST:PORT, which browsers can open"));
  }
  if (impl->address.loopback) impl->options.tls = {};
  if (!impl->address.loopback && !options.tls.any()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--http ", options.address,
                     ": off this machine it needs TLS: give --tls-ca, --tls-cert and --tls-key "
                     "(`megascale certs init` makes them), or a loopback address"));
  }
  if (impl->options.tls.any()) {
    ASSIGN_OR_RETURN(impl->pems, security::LoadTlsFiles(options.tls, security::Role::kDriver));
  }
  RETURN_IF_ERROR(impl->Serve());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

std::string HttpServer::url() const {
  const std::string& text = impl_->address.text;
  return absl::StrCat(impl_->options.tls.any() ? "https://" : "http://",
                      text.substr(0, text.rfind(':') + 1), impl_->port, "/");
}

int HttpServer::port() const { return impl_->port; }

}  // namespace megascale::http
