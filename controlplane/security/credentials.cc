#include "controlplane/security/credentials.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/security/auth_metadata_processor.h>

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "controlplane/security/grpc_log.h"
#include "controlplane/security/tls_check.h"
#include "runtime/base/status.h"

namespace megascale::security {
namespace {

constexpr char kAgentMethods[] = "/megascale.agent.v1.AgentService/";

enum class Transport { kPlain, kTls };

// Chooses the transport of an address. Plaintext never leaves this machine.
absl::StatusOr<Transport> ChooseTransport(const client::Address& address, const TlsFiles& files,
                                          bool insecure) {
  if (address.is_unix()) return Transport::kPlain;
  if (files.any() && insecure) {
    return absl::InvalidArgumentError(
        "--insecure and --tls-* exclude each other; leave --insecure out");
  }
  if (files.any()) return Transport::kTls;
  if (insecure && address.loopback) return Transport::kPlain;
  return absl::InvalidArgumentError(absl::StrCat(
      address.text, " is a TCP address: it needs --tls-ca, --tls-cert and --tls-key",
      address.loopback ? ", or --insecure"
                       : "; --insecure is for loopback addresses (127.0.0.1, [::1], localhost)"));
}

std::string PeerCertificate(const grpc::AuthContext& context) {
  const auto found = context.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return found.empty() ? "" : std::string(found.front().data(), found.front().size());
}

// Checks the role of every call's client, by the certificate that the handshake has verified.
class RoleCheck final : public grpc::AuthMetadataProcessor {
 public:
  bool IsBlocking() const override { return false; }  // it parses a kilobyte

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context,
                       OutputMetadata* consumed, OutputMetadata* response) override {
    const auto path = metadata.find(":path");
    if (path == metadata.end()) return {grpc::StatusCode::INTERNAL, "a call without a path"};
    const std::string method(path->second.data(), path->second.size());
    const Role needed = absl::StartsWith(method, kAgentMethods) ? Role::kAgent : Role::kUser;
    const auto certificate = DescribeCertificate(PeerCertificate(*context));
    if (!certificate.ok()) {
      return {grpc::StatusCode::UNAUTHENTICATED, "the client's certificate cannot be read"};
    }
    if (certificate->role == needed) return grpc::Status::OK;
    const std::string why =
        absl::StrCat("the certificate of '", certificate->name, "' has the role ",
                     RoleName(certificate->role), "; ", method, " is for role ", RoleName(needed));
    LogRefusal(absl::StrCat("refused a call: ", why));
    return {grpc::StatusCode::PERMISSION_DENIED, why};
  }
};

}  // namespace

std::string PeerName(const grpc::AuthContext& context) {
  const auto certificate = DescribeCertificate(PeerCertificate(context));
  if (!certificate.ok()) return "";
  return certificate->name.empty() ? certificate->fingerprint : certificate->name;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const client::Address& address, const TlsFiles& files, bool insecure, Role role) {
  ASSIGN_OR_RETURN(const Transport transport, ChooseTransport(address, files, insecure));
  if (transport == Transport::kPlain) return grpc::InsecureChannelCredentials();
  ASSIGN_OR_RETURN(TlsPems pems, LoadTlsFiles(files, role));
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = std::move(pems.ca);
  options.pem_cert_chain = std::move(pems.certificate);
  options.pem_private_key = std::move(pems.key);
  return grpc::SslCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const client::Address& address, const TlsFiles& files, bool insecure) {
  ASSIGN_OR_RETURN(const Transport transport, ChooseTransport(address, files, insecure));
  if (transport == Transport::kPlain) return grpc::InsecureServerCredentials();
  ASSIGN_OR_RETURN(TlsPems pems, LoadTlsFiles(files, Role::kDriver));
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = std::move(pems.ca);
  options.pem_key_cert_pairs.push_back({std::move(pems.key), std::move(pems.certificate)});
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::SslServerCredentials(options);
  credentials->SetAuthMetadataProcessor(std::make_shared<RoleCheck>());
  return credentials;
}

}  // namespace megascale::security
