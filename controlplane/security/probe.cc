#include "controlplane/security/probe.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "controlplane/security/certificate.h"
#include "controlplane/security/openssl.h"
#include "controlplane/security/tls_check.h"
#include "runtime/base/fd.h"
#include "runtime/base/socket/without_sigpipe.h"
#include "runtime/base/status.h"

namespace megascale::security {
namespace {

// The first bytes of an HTTP/2 client: the preface and an empty SETTINGS frame.
constexpr absl::string_view kHttp2Preface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
constexpr size_t kFrameHeaderBytes = 9;
constexpr char kSettingsFrame = 4;
constexpr unsigned char kAlpnHttp2[] = {2, 'h', '2'};

void SetTimeouts(int socket, absl::Duration timeout) {
  const timeval limit = absl::ToTimeval(timeout);
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));  // connect's, too
}

absl::Status Unreachable(const client::Address& address, absl::string_view why) {
  return absl::UnavailableError(
      absl::StrCat("no driver can be reached at ", address.text, ": ", why));
}

absl::StatusOr<base::UniqueFd> Connect(const client::Address& address, absl::Duration timeout) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(address.port);
  if (const int error = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
      error != 0) {
    return Unreachable(address, ::gai_strerror(error));
  }
  const absl::Cleanup free = [found] { ::freeaddrinfo(found); };
  int last_error = ETIMEDOUT;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    base::UniqueFd socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.valid()) continue;
    SetTimeouts(socket.get(), timeout);
    if (::connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0) return socket;
    last_error = errno == EINPROGRESS ? ETIMEDOUT : errno;
  }
  return Unreachable(address, std::strerror(last_error));
}

// True if gRPC without TLS answers on a fresh connection.
bool SpeaksPlaintext(const client::Address& address, absl::Duration timeout) {
  const absl::StatusOr<base::UniqueFd> socket = Connect(address, timeout);
  if (!socket.ok()) return false;
  if (::send(socket->get(), kHttp2Preface.data(), kHttp2Preface.size(), MSG_NOSIGNAL) < 0) {
    return false;
  }
  char frame[kFrameHeaderBytes];
  const ssize_t got = ::recv(socket->get(), frame, sizeof(frame), MSG_WAITALL);
  return got == static_cast<ssize_t>(sizeof(frame)) && frame[3] == kSettingsFrame;
}

// A TLS client that makes the same offers as a gRPC channel.
class Handshake {
 public:
  // Without `pems` it accepts any certificate and presents no own one.
  static absl::StatusOr<Handshake> Create(const client::Address& address, const TlsPems* pems);

  // Runs the handshake; true: it succeeded. The functions below tell why it failed.
  bool Run(int socket);
  // Call after Run: the server's verdict on this client's certificate comes with its first bytes.
  bool ServerSpeaks();

  long verify_result() const { return SSL_get_verify_result(ssl_.get()); }
  int alert() const { return alert_; }  // that the server sent; -1: none
  bool has_timed_out() const { return has_timed_out_; }
  std::string ServerCertificate() const;

 private:
  // Notes the error of an OpenSSL call that returned `result`.
  void TakeError(int result);
  // Keeps the server's certificate in server_, because OpenSSL drops one that it refuses.
  static int KeepServer(int is_good, X509_STORE_CTX* context);

  UniqueSslContext context_;
  UniqueSsl ssl_;
  std::unique_ptr<UniqueX509> server_ = std::make_unique<UniqueX509>();
  int alert_ = -1;
  bool has_timed_out_ = false;
};

bool UseCertificates(SSL_CTX* context, const TlsPems& pems) {
  const auto roots = ParseCertificates(pems.ca);
  const auto chain = ParseCertificates(pems.certificate);
  const auto key = ParseKey(pems.key);
  if (!roots.ok() || !chain.ok() || !key.ok()) return false;
  for (const UniqueX509& root : *roots) {
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context), root.get());
  }
  if (SSL_CTX_use_certificate(context, chain->front().get()) != 1) return false;
  for (size_t i = 1; i < chain->size(); ++i) SSL_CTX_add1_chain_cert(context, (*chain)[i].get());
  return SSL_CTX_use_PrivateKey(context, key->get()) == 1;
}

absl::StatusOr<Handshake> Handshake::Create(const client::Address& address, const TlsPems* pems) {
  Handshake handshake;
  handshake.context_.reset(SSL_CTX_new(TLS_client_method()));
  SSL_CTX* context = handshake.context_.get();
  if (context == nullptr || (pems != nullptr && !UseCertificates(context, *pems))) {
    return absl::InternalError(
        absl::StrCat("OpenSSL does not accept these certificates: ", OpensslError()));
  }
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  handshake.ssl_.reset(SSL_new(context));
  SSL* ssl = handshake.ssl_.get();
  if (ssl == nullptr) return absl::InternalError(OpensslError());
  SSL_set_alpn_protos(ssl, kAlpnHttp2, sizeof(kAlpnHttp2));
  if (pems == nullptr) return handshake;
  SSL_set_verify(ssl, SSL_VERIFY_PEER, KeepServer);
  SSL_set_app_data(ssl, handshake.server_.get());
  X509_VERIFY_PARAM* expected = SSL_get0_param(ssl);
  if (X509_VERIFY_PARAM_set1_ip_asc(expected, address.host.c_str()) != 1) {
    SSL_set_tlsext_host_name(ssl, address.host.c_str());
    SSL_set1_host(ssl, address.host.c_str());
  }
  ERR_clear_error();
  return handshake;
}

bool Handshake::Run(int socket) {
  ERR_clear_error();
  if (SSL_set_fd(ssl_.get(), socket) != 1) return false;
  const int result = SSL_connect(ssl_.get());
  if (result != 1) TakeError(result);
  return result == 1;
}

bool Handshake::ServerSpeaks() {
  ERR_clear_error();
  char byte;
  const int result = SSL_read(ssl_.get(), &byte, 1);
  if (result != 1) TakeError(result);
  return result == 1;
}

void Handshake::TakeError(int result) {
  has_timed_out_ = SSL_get_error(ssl_.get(), result) == SSL_ERROR_WANT_READ;
  const unsigned long error = ERR_peek_error();
  const int reason = ERR_GET_REASON(error);
  if (ERR_GET_LIB(error) == ERR_LIB_SSL && reason > SSL_AD_REASON_OFFSET) {
    alert_ = reason - SSL_AD_REASON_OFFSET;
  }
  ERR_clear_error();
}

int Handshake::KeepServer(int is_good, X509_STORE_CTX* context) {
  const auto* ssl = static_cast<const SSL*>(
      X509_STORE_CTX_get_ex_data(context, SSL_get_ex_data_X509_STORE_CTX_idx()));
  X509* certificate = X509_STORE_CTX_get0_cert(context);
  X509_up_ref(certificate);
  static_cast<UniqueX509*>(SSL_get_app_data(ssl))->reset(certificate);
  return is_good;
}

std::string Handshake::ServerCertificate() const {
  const UniqueBio bio(BIO_new(BIO_s_mem()));
  if (*server_ == nullptr || PEM_write_bio_X509(bio.get(), server_->get()) != 1) return "";
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

// Explains why this side refuses the driver's certificate.
std::string WhyServerIsRefused(const client::Address& address, const TlsFiles& files,
                               const Handshake& handshake) {
  const auto certificate = DescribeCertificate(handshake.ServerCertificate());
  if (!certificate.ok()) return "it showed no certificate";
  const std::string whose = absl::StrCat("its certificate ('", certificate->name, "')");
  switch (handshake.verify_result()) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return absl::StrCat(whose, " ", DescribeValidity(*certificate, absl::Now()),
                          "; give the driver a new one (megascale certs issue), and see that "
                          "both machines' clocks are right");
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return absl::StrCat(whose, " is for ", absl::StrJoin(certificate->hosts, ", "), ", not for ",
                          address.host, "; use one of these names, or issue one with --host ",
                          address.host);
    case X509_V_ERR_INVALID_PURPOSE:
      return absl::StrCat(whose, " is not for servers, its role is ", RoleName(certificate->role),
                          "; give the driver one of the role driver");
    default:
      return absl::StrCat(whose, " is signed by '", certificate->issuer, "', which --tls-ca ",
                          files.ca, " does not hold (",
                          X509_verify_cert_error_string(handshake.verify_result()),
                          "); give the ca.pem of the authority that made it");
  }
}

// Explains why the driver refuses this side's certificate. Expiry, key and form of the own files
// were checked before, so the likely reason is the authority that the driver trusts.
std::string WhyClientIsRefused(const TlsFiles& files, const TlsPems& pems, int alert) {
  const auto certificate = DescribeCertificate(pems.certificate);
  const std::string issuer = certificate.ok() ? certificate->issuer : "?";
  const std::string said =
      alert < 0 ? "" : absl::StrCat(" (it said: ", SSL_alert_desc_string_long(alert), ")");
  return absl::StrCat("it refuses --tls-cert ", files.certificate, ", signed by '", issuer, "'",
                      said,
                      "; use a certificate of the authority that the driver was given as its "
                      "--tls-ca");
}

absl::Status Refused(const client::Address& address, absl::string_view why) {
  return absl::UnauthenticatedError(absl::StrCat("the driver at ", address.text, ": ", why));
}

absl::Status ProbePlaintext(const client::Address& address, absl::Duration timeout) {
  ASSIGN_OR_RETURN(const base::UniqueFd socket, Connect(address, timeout));
  ASSIGN_OR_RETURN(Handshake handshake, Handshake::Create(address, nullptr));
  if (!handshake.Run(socket.get()) && handshake.alert() < 0) return absl::OkStatus();
  return Refused(address,
                 "it speaks TLS, and this program plaintext; give --tls-ca, --tls-cert and "
                 "--tls-key instead of --insecure");
}

// `tries_left`: a gRPC server closes the connection without an answer both when it refuses a client
// and when it is being stopped. When it is being stopped, the next try finds it gone.
absl::Status ProbeTls(const client::Address& address, const TlsFiles& files, const TlsPems& pems,
                      absl::Duration timeout, int tries_left) {
  ASSIGN_OR_RETURN(const base::UniqueFd socket, Connect(address, timeout));
  ASSIGN_OR_RETURN(Handshake handshake, Handshake::Create(address, &pems));
  const bool is_done = handshake.Run(socket.get());
  if (is_done && handshake.ServerSpeaks()) return absl::OkStatus();
  if (handshake.has_timed_out()) return Unreachable(address, "it does not answer in time");
  if (handshake.verify_result() != X509_V_OK) {
    return Refused(address, WhyServerIsRefused(address, files, handshake));
  }
  if (is_done && handshake.alert() < 0 && tries_left > 0) {
    return ProbeTls(address, files, pems, timeout, tries_left - 1);
  }
  if (is_done || handshake.alert() >= 0) {
    return Refused(address, WhyClientIsRefused(files, pems, handshake.alert()));
  }
  if (SpeaksPlaintext(address, timeout)) {
    return Refused(address,
                   "it speaks plaintext, and this program TLS; start the driver with --tls-ca, "
                   "--tls-cert and --tls-key, or use --insecure on this machine");
  }
  return Unreachable(address, "what listens there speaks no TLS and no gRPC; is it a driver?");
}

}  // namespace

absl::Status ProbeDriver(const client::Address& address, const TlsFiles& files, Role role,
                         absl::Duration timeout) {
  // A driver that ends just then would end its agents and clients.
  const base::WithoutSigpipe without_sigpipe;
  if (!files.any()) return ProbePlaintext(address, timeout);
  ASSIGN_OR_RETURN(const TlsPems pems, LoadTlsFiles(files, role));
  return ProbeTls(address, files, pems, timeout, /*tries_left=*/1);
}

}  // namespace megascale::security
