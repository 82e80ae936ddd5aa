// The one place where credentials of gRPC connections are made: which transport an address gets, on
// both sides, and who may call what. Plaintext goes over Unix sockets and, when asked for,
// loopback; everything else is mutual TLS.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "controlplane/client/address.h"
#include "controlplane/security/certificate.h"
#include "controlplane/security/tls_files.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace megascale::security {

// Of a connection to a driver, by an agent or a user (`role`).
// Errors: InvalidArgument - TCP without TLS, --insecure beyond loopback or beside TLS; as
// LoadTlsFiles.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const client::Address& address, const TlsFiles& files, bool insecure, Role role);

// Of the driver. With TLS, a call by a client whose role does not allow it ends with
// PERMISSION_DENIED: AgentService is for agents, everything else for users.
// Errors: as MakeChannelCredentials.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const client::Address& address, const TlsFiles& files, bool insecure);

}  // namespace megascale::security
