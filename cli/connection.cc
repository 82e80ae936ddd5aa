#include "cli/connection.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "controlplane/client/address.h"
#include "runtime/base/status.h"

namespace megascale::cli {

void AddConnectionOptions(Command* command, ConnectionFlags* flags) {
  command->Text("--address", &flags->address,
                "the driver: unix:/path or host:port (default: MEGASCALE_ADDRESS, else a socket in "
                "the user's runtime directory)");
  command->Text("--tls-ca", &flags->tls.ca, "PEM file that the driver's certificate is signed by");
  command->Text("--tls-cert", &flags->tls.cert, "PEM file of this client's certificate");
  command->Text("--tls-key", &flags->tls.key, "PEM file of its private key");
  command->Flag("--insecure", &flags->insecure, "no TLS; for loopback addresses only");
}

absl::StatusOr<std::unique_ptr<client::JobClient>> Connect(const ConnectionFlags& flags) {
  client::ClientOptions options;
  ASSIGN_OR_RETURN(options.address, client::ChooseAddress(flags.address));
  options.tls = flags.tls;
  options.insecure = flags.insecure;
  return client::JobClient::Create(options);
}

control::v1::CancelJobRequest MakeCancelRequest(const std::string& job_id, absl::Duration grace,
                                                bool checkpoint) {
  control::v1::CancelJobRequest request;
  request.set_job_id(job_id);
  const int64_t nanos = absl::ToInt64Nanoseconds(grace);
  request.mutable_grace()->set_seconds(nanos / 1'000'000'000);
  request.mutable_grace()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  request.set_checkpoint(checkpoint);
  return request;
}

void PrintDetached(const std::string& job_id, const ConnectionFlags& flags) {
  std::fprintf(stderr, "\ndetached; %s goes on\n  follow it: %s\n  cancel it: %s\n", job_id.c_str(),
               NextCommand(absl::StrCat("watch ", job_id), flags).c_str(),
               NextCommand(absl::StrCat("cancel ", job_id), flags).c_str());
}

std::string NextCommand(const std::string& words, const ConnectionFlags& flags) {
  return absl::StrCat("megascale ", words,
                      flags.address.empty() ? "" : absl::StrCat(" --address ", flags.address));
}

}  // namespace megascale::cli
