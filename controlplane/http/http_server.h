// A web server that only reads. It runs on threads of its own, one for each connection, at most
// `connections_max`; further ones are refused with the status 503. A connection counts once it has
// shown the token. Of those that have not, at most kStrangersMax are open: the oldest makes room
// for a new one, so that nobody without the token can keep others out. A request is at most 32 KiB.
// It has to be complete within 10 s, and the client has to read its answer within 30 s and each
// event within 30 s. Otherwise the connection is closed. Every answer forbids scripts and frames of
// other sites. An answer that is longer than kAnswerBytesMax is not sent: the client gets the
// status 503.
//
//   HttpOptions options;
//   options.address = "127.0.0.1:7078";
//   options.token = token;
//   options.answer = [](const Request& request) { return Response{.body = "…"}; };
//   ASSIGN_OR_RETURN(auto server, HttpServer::Start(options));
//   server->url();  // "http://127.0.0.1:7078/"
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/security/tls_files.h"

namespace megascale::http {

inline constexpr int kStrangersMax = 32;
inline constexpr size_t kAnswerBytesMax = size_t{1} << 20;

struct Request {
  std::string path;                          // "/api/jobs"; decoded
  std::map<std::string, std::string> query;  // decoded; without the token
};

struct Response {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// The events of one client, as the server asks for them.
class EventSource {
 public:
  virtual ~EventSource() = default;
  // Returns what to send now, in the form of server-sent events; "": nothing is new.
  virtual std::string Next() = 0;
};

struct HttpOptions {
  std::string address;     // HOST:PORT; port 0: the system chooses one
  security::TlsFiles tls;  // those of the driver: used, and needed, if the address is not loopback
  std::string token;       // every request needs it
  int connections_max = 64;
  // How often each EventSource is asked.
  absl::Duration event_interval = absl::Seconds(1);
  // Both are called by the connections' threads, several at once. Required.
  std::function<Response(const Request&)> answer;
  // Returns null if the path has no events.
  std::function<std::unique_ptr<EventSource>(const Request&)> events;
};

class HttpServer {
 public:
  // Listens and serves. Errors: InvalidArgument - the address, or plaintext off this machine;
  // FailedPrecondition - it cannot listen there; and those of security::LoadTlsFiles.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpOptions& options);

  // Closes all connections. Blocking: until the calls of `answer` that run have returned.
  ~HttpServer();

  // "http://127.0.0.1:7078/", without the token.
  std::string url() const;
  int port() const;

  struct Impl;

 private:
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace megascale::http
