// The options that name the driver, for every command that talks to it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/command_line/command_line.h"
#include "controlplane/client/job_client.h"
#include "controlplane/security/tls_files.h"

namespace megascale::cli {

struct ConnectionFlags {
  std::string address;  // empty: MEGASCALE_ADDRESS, else the default
  security::TlsFiles tls;
  bool insecure = false;
  absl::Duration retry_for = absl::Seconds(10);
};

// Adds --tls-ca, --tls-cert, --tls-key and --insecure. For the help texts: `peer` is the party
// whose certificate --tls-ca verifies, "the driver"; `own` is the owner of the other two files,
// "this agent".
void AddTlsOptions(Command* command, const std::string& peer, const std::string& own,
                   security::TlsFiles* tls, bool* insecure);

// Adds --address and the options above.
void AddConnectionOptions(Command* command, ConnectionFlags* flags);

// Adds --retry-for, for `submit` and for commands that only read.
void AddRetryOption(Command* command, ConnectionFlags* flags);

// Returns how calls wait for a driver that does not answer: they wait for --retry-for, and say so
// in one line on standard error. `should_stop` may be empty.
client::RetryOptions RetryOf(const ConnectionFlags& flags,
                             const std::function<bool()>& should_stop = {});

// Makes a client of the driver. Its calls that read wait as RetryOf says. Errors: InvalidArgument -
// a malformed address, or plaintext where it is not allowed.
absl::StatusOr<std::unique_ptr<client::JobClient>> Connect(
    const ConnectionFlags& flags, const std::function<bool()>& should_stop = {});

control::v1::CancelJobRequest MakeCancelRequest(const std::string& job_id, absl::Duration grace,
                                                bool checkpoint);

// Prints that the job continues without this program, and how to cancel the job.
void PrintDetached(const std::string& job_id, const ConnectionFlags& flags);

// Returns a command that the user can type next: "megascale <words>" with the options in `flags`
// that were given. Leaves out settings from the environment, because the next command reads them,
// too.
std::string NextCommand(const std::string& words, const ConnectionFlags& flags);

// Returns `text` with the options of `flags` added to each command in backquotes that calls the
// driver. The driver's messages name commands, but the driver does not know how this client reaches
// it.
std::string CompleteCommands(absl::string_view text, const ConnectionFlags& flags);
// As above, for the message of a job that is shown to people.
control::v1::Job CompleteCommands(control::v1::Job job, const ConnectionFlags& flags);

// Reports the error of a call to the driver, with its commands completed by CompleteCommands, and
// returns the error's exit code.
int ReportCallError(const absl::Status& status, const ConnectionFlags& flags);

}  // namespace megascale::cli
