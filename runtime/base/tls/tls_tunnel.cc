#include "runtime/base/tls/tls_tunnel.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace megascale::base {
namespace {

constexpr size_t kBufferBytes = 64 << 10;
constexpr int kTurnsMax = 16;  // in one direction, before the other gets its turn

struct FreeContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
struct FreeSession {
  void operator()(SSL* session) const { SSL_free(session); }
};
using Context = std::unique_ptr<SSL_CTX, FreeContext>;

// Returns the oldest error of this thread as text, and clears all.
std::string OpenSslError() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (ERR_SYSTEM_ERROR(code)) return strerror(ERR_GET_REASON(code));
  const char* reason = ERR_reason_error_string(code);
  return reason == nullptr ? "unknown error" : reason;
}

absl::Status FileError(const std::string& file) {
  return absl::FailedPreconditionError(
      absl::StrCat(file, ": ", OpenSslError(), "; expected a PEM file that this process can read"));
}

// Refuses keys with a passphrase instead of prompting for it.
int NoPassphrase(char*, int, int, void*) { return -1; }

absl::StatusOr<Context> MakeContext(const TlsTunnelOptions& options) {
  ERR_clear_error();
  Context context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return absl::ResourceExhaustedError(OpenSslError());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_default_passwd_cb(context.get(), NoPassphrase);
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (options.ca_file.empty()) {
    if (SSL_CTX_set_default_verify_paths(context.get()) != 1) return FileError("system's CAs");
  } else if (SSL_CTX_load_verify_file(context.get(), options.ca_file.c_str()) != 1) {
    return FileError(options.ca_file);
  }
  if (options.certificate_file.empty()) return context;
  if (SSL_CTX_use_certificate_chain_file(context.get(), options.certificate_file.c_str()) != 1) {
    return FileError(options.certificate_file);
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), options.key_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return FileError(options.key_file);
  }
  return context;
}

bool IsIpAddress(const std::string& name) {
  std::array<unsigned char, sizeof(in6_addr)> address;
  return ::inet_pton(AF_INET, name.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), address.data()) == 1;
}

// Bytes that are on their way in one direction.
struct Buffer {
  std::array<char, kBufferBytes> bytes;
  size_t begin = 0;
  size_t end = 0;

  bool empty() const { return begin == end; }
  void Filled(size_t count) { end += count; }
  void Drained(size_t count) {
    begin += count;
    if (empty()) begin = end = 0;
  }
};

}  // namespace

// Lives on the tunnel's thread once that has started.
class TlsTunnel::Session {
 public:
  static absl::StatusOr<std::unique_ptr<Session>> Create(UniqueFd socket, UniqueFd inner,
                                                         const TlsTunnelOptions& options);

  // Runs until the session ends or `stop` is readable; returns why it ended.
  absl::Status Run(int stop);

 private:
  Session(UniqueFd socket, UniqueFd inner, const TlsTunnelOptions& options)
      : socket_(std::move(socket)), inner_(std::move(inner)), options_(options) {}

  absl::Status Handshake();
  absl::Status Pump();
  absl::Status Encrypt();
  absl::Status Decrypt();
  bool ReadPlain();
  bool WritePlain();
  absl::Status Failure(int result);

  const UniqueFd socket_;
  const UniqueFd inner_;  // our end of the pair
  const TlsTunnelOptions options_;
  Context context_;
  std::unique_ptr<SSL, FreeSession> ssl_;
  Buffer outgoing_;
  Buffer incoming_;
  bool is_ready_ = false;
  bool wants_read_ = true;  // from the socket
  bool wants_write_ = false;
  bool moved_ = false;  // since the last turn
};

absl::StatusOr<std::unique_ptr<TlsTunnel::Session>> TlsTunnel::Session::Create(
    UniqueFd socket, UniqueFd inner, const TlsTunnelOptions& options) {
  std::unique_ptr<Session> session(new Session(std::move(socket), std::move(inner), options));
  ASSIGN_OR_RETURN(session->context_, MakeContext(options));
  session->ssl_.reset(SSL_new(session->context_.get()));
  SSL* ssl = session->ssl_.get();
  if (ssl == nullptr || SSL_set_fd(ssl, session->socket_.get()) != 1) {
    return absl::ResourceExhaustedError(OpenSslError());
  }
  const char* name = options.server_name.c_str();
  if (IsIpAddress(options.server_name)) {
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) != 1) {
      return absl::InvalidArgumentError(OpenSslError());
    }
  } else {
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (options.server_name.empty() || SSL_set1_host(ssl, name) != 1 ||
        SSL_set_tlsext_host_name(ssl, name) != 1) {
      return absl::InvalidArgumentError("TLS needs the name of the server");
    }
  }
  SSL_set_connect_state(ssl);
  return session;
}

// Returns the error of a call with `result`; OK if it only has to wait. Requires: the call failed.
absl::Status TlsTunnel::Session::Failure(int result) {
  const int error = SSL_get_error(ssl_.get(), result);
  const int system_error = errno;
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
    wants_read_ = wants_read_ || error == SSL_ERROR_WANT_READ;
    wants_write_ = wants_write_ || error == SSL_ERROR_WANT_WRITE;
    return absl::OkStatus();
  }
  if (error == SSL_ERROR_ZERO_RETURN) return absl::UnavailableError("closed the TLS session");
  const long verified = SSL_get_verify_result(ssl_.get());
  if (!is_ready_ && verified != X509_V_OK) {
    ERR_clear_error();
    return absl::FailedPreconditionError(absl::StrCat("its certificate is not good for ",
                                                      options_.server_name, ": ",
                                                      X509_verify_cert_error_string(verified)));
  }
  if (error == SSL_ERROR_SSL) {
    const std::string why = OpenSslError();
    if (why == "unexpected eof while reading")
      return absl::UnavailableError("closed the connection");
    return absl::FailedPreconditionError(absl::StrCat("TLS: ", why));
  }
  ERR_clear_error();
  return system_error == 0 ? absl::UnavailableError("closed the connection")
                           : absl::UnavailableError(ErrnoStatus(system_error, "TLS").message());
}

absl::Status TlsTunnel::Session::Handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) {
    is_ready_ = moved_ = true;
    return absl::OkStatus();
  }
  return Failure(result);
}

absl::Status TlsTunnel::Session::Encrypt() {
  while (!outgoing_.empty()) {
    ERR_clear_error();
    errno = 0;
    const int written = SSL_write(ssl_.get(), outgoing_.bytes.data() + outgoing_.begin,
                                  static_cast<int>(outgoing_.end - outgoing_.begin));
    if (written <= 0) return Failure(written);
    outgoing_.Drained(static_cast<size_t>(written));
    moved_ = true;
  }
  return absl::OkStatus();
}

absl::Status TlsTunnel::Session::Decrypt() {
  while (incoming_.end < kBufferBytes) {
    ERR_clear_error();
    errno = 0;
    const int count = SSL_read(ssl_.get(), incoming_.bytes.data() + incoming_.end,
                               static_cast<int>(kBufferBytes - incoming_.end));
    if (count <= 0) return Failure(count);
    incoming_.Filled(static_cast<size_t>(count));
    moved_ = true;
  }
  return absl::OkStatus();
}

// Returns false if the plain end is closed: the session is no longer used.
bool TlsTunnel::Session::ReadPlain() {
  if (outgoing_.end == kBufferBytes) return true;
  const ssize_t count = ::recv(inner_.get(), outgoing_.bytes.data() + outgoing_.end,
                               kBufferBytes - outgoing_.end, MSG_DONTWAIT);
  if (count > 0) {
    outgoing_.Filled(static_cast<size_t>(count));
    moved_ = true;
  }
  return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

bool TlsTunnel::Session::WritePlain() {
  if (incoming_.empty()) return true;
  const ssize_t count = ::send(inner_.get(), incoming_.bytes.data() + incoming_.begin,
                               incoming_.end - incoming_.begin, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count > 0) {
    incoming_.Drained(static_cast<size_t>(count));
    moved_ = true;
  }
  return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

// Moves as many bytes as possible without waiting.
absl::Status TlsTunnel::Session::Pump() {
  wants_read_ = wants_write_ = false;
  for (int turn = 0; turn < kTurnsMax; ++turn) {
    moved_ = false;
    if (!is_ready_) RETURN_IF_ERROR(Handshake());
    if (is_ready_) {
      if (!ReadPlain()) return absl::CancelledError("nobody speaks any more");
      RETURN_IF_ERROR(Encrypt());
      absl::Status decrypted = Decrypt();
      if (!WritePlain()) return absl::CancelledError("nobody listens any more");
      RETURN_IF_ERROR(decrypted);
    }
    if (!moved_) break;
  }
  return absl::OkStatus();
}

absl::Status TlsTunnel::Session::Run(int stop) {
  const absl::Duration deadline = RealClock().Monotonic() + options_.handshake_timeout;
  for (;;) {
    RETURN_IF_ERROR(Pump());
    const absl::Duration left = deadline - RealClock().Monotonic();
    if (!is_ready_ && left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "no TLS handshake within ", absl::FormatDuration(options_.handshake_timeout)));
    }
    short inner = 0;
    if (is_ready_ && outgoing_.end < kBufferBytes) inner |= POLLIN;
    if (!incoming_.empty()) inner |= POLLOUT;
    short outer = 0;
    if (wants_read_ && incoming_.end < kBufferBytes) outer |= POLLIN;
    if (wants_write_) outer |= POLLOUT;
    pollfd entries[] = {{stop, POLLIN, 0}, {inner_.get(), inner, 0}, {socket_.get(), outer, 0}};
    ::poll(entries, 3, moved_ ? 0 : is_ready_ ? 60'000 : PollMilliseconds(left));
    if (entries[0].revents != 0) return absl::CancelledError("stopped");
    // Before the session is established, nothing else reads the plain end and notices that it
    // closed.
    if (!is_ready_ && (entries[1].revents & (POLLHUP | POLLERR)) != 0) {
      return absl::CancelledError("nobody speaks any more");
    }
  }
}

absl::StatusOr<std::unique_ptr<TlsTunnel>> TlsTunnel::Start(UniqueFd socket,
                                                            const TlsTunnelOptions& options) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  UniqueFd plain_end(ends[0]);
  UniqueFd inner(ends[1]);
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (!stop.valid() || flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "TLS tunnel");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                   Session::Create(std::move(socket), std::move(inner), options));
  return std::unique_ptr<TlsTunnel>(
      new TlsTunnel(std::move(session), std::move(plain_end), std::move(stop)));
}

TlsTunnel::TlsTunnel(std::unique_ptr<Session> session, UniqueFd plain_end, UniqueFd stop)
    : plain_end_(std::move(plain_end)), stop_(std::move(stop)) {
  thread_ = std::thread([this, session = std::move(session)]() mutable {
    // OpenSSL writes with write(2), which may raise SIGPIPE; other threads handle the process's
    // signals.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    const absl::Status ended = session->Run(stop_.get());
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      status_ = ended;
    }
    session.reset();  // closes our end of the pair; status_ is set before the reader sees this
  });
}

TlsTunnel::~TlsTunnel() {
  const uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

absl::Status TlsTunnel::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

}  // namespace megascale::base
