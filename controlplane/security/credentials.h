// Makes the credentials of all gRPC connections, on both sides. They decide which transport an
// address gets, and which role may call which service. Unix sockets are plaintext; loopback
// addresses are plaintext with `insecure`; everything else is mutual TLS.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "controlplane/address/address.h"
#include "controlplane/security/certificate.h"
#include "controlplane/security/tls_files.h"

namespace grpc {
class AuthContext;
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace megascale::security {

// Makes the credentials of a connection to a driver, for an agent or a user (`role`).
// Errors: InvalidArgument - TCP without TLS, or --insecure with TLS or an address that is not
// loopback; and those of LoadTlsFiles.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const client::Address& address, const TlsFiles& files, bool insecure, Role role);

// Makes the driver's credentials. With TLS, a call that the client's role does not allow ends with
// PERMISSION_DENIED: AgentService is for agents, everything else for users.
// Errors: as MakeChannelCredentials.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const client::Address& address, const TlsFiles& files, bool insecure);

// Returns the name in the certificate of a call's client, or the certificate's fingerprint if it
// has no name; empty without TLS.
std::string PeerName(const grpc::AuthContext& context);

}  // namespace megascale::security
