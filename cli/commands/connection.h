// Options that say which driver, for every command that talks to one.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/command_line.h"
#include "controlplane/client/job_client.h"
#include "controlplane/security/tls_files.h"

namespace megascale::cli {

struct ConnectionFlags {
  std::string address;  // empty: MEGASCALE_ADDRESS, else the default
  security::TlsFiles tls;
  bool insecure = false;
};

// --tls-ca, --tls-cert, --tls-key, --insecure. `peer`: whose certificates the authority signs, "the
// driver"; `own`: of whom the other two are, "this agent".
void AddTlsOptions(Command* command, const std::string& peer, const std::string& own,
                   security::TlsFiles* tls, bool* insecure);

// --address and the options above.
void AddConnectionOptions(Command* command, ConnectionFlags* flags);

// Errors: InvalidArgument - an address that is none, or plaintext where it may not be.
absl::StatusOr<std::unique_ptr<client::JobClient>> Connect(const ConnectionFlags& flags);

control::v1::CancelJobRequest MakeCancelRequest(const std::string& job_id, absl::Duration grace,
                                                bool checkpoint);

// Says that the job goes on without this program, and how to cancel it.
void PrintDetached(const std::string& job_id, const ConnectionFlags& flags);

// "megascale <words>", with the address where one was given: a command to type next.
std::string NextCommand(const std::string& words, const ConnectionFlags& flags);

}  // namespace megascale::cli
