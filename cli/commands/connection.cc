#include "cli/commands/connection.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "controlplane/address/address.h"
#include "controlplane/security/grpc_log.h"
#include "runtime/base/status.h"

namespace megascale::cli {
namespace {

// Returns `text` quoted so that a shell reads it back unchanged.
std::string ShellWord(const std::string& text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::StrContains("/.:_-+,@%=", std::string(1, c));
  });
  if (plain && !text.empty()) return text;
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

}  // namespace

void AddTlsOptions(Command* command, const std::string& peer, const std::string& own,
                   security::TlsFiles* tls, bool* insecure) {
  command->Text("--tls-ca", &tls->ca,
                absl::StrCat("PEM file of the authority that signed the certificates of ", peer));
  command->Text("--tls-cert", &tls->certificate,
                absl::StrCat("PEM file of the certificate of ", own));
  command->Text("--tls-key", &tls->key, "PEM file of its private key; for its owner only");
  command->Flag("--insecure", insecure, "plaintext; for loopback addresses only");
}

void AddConnectionOptions(Command* command, ConnectionFlags* flags) {
  command->Text("--address", &flags->address,
                "the driver: unix:/path or host:port (default: MEGASCALE_ADDRESS, else a socket in "
                "the user's runtime directory)");
  AddTlsOptions(command, "the driver", "this client", &flags->tls, &flags->insecure);
}

void AddRetryOption(Command* command, ConnectionFlags* flags) {
  command->Duration("--retry-for", &flags->retry_for,
                    "how long to wait for a driver that does not answer");
}

client::RetryOptions RetryOf(const ConnectionFlags& flags,
                             const std::function<bool()>& should_stop) {
  client::RetryOptions retry;
  retry.time = flags.retry_for;
  retry.should_stop = should_stop;
  retry.on_retry = [flags, said = false]() mutable {
    if (std::exchange(said, true)) return;
    const auto address = client::ChooseAddress(flags.address);
    std::fprintf(stderr, "no driver answers at %s; trying for %s\n",
                 address.ok() ? address->text.c_str() : "its address",
                 absl::FormatDuration(flags.retry_for).c_str());
  };
  return retry;
}

absl::StatusOr<std::unique_ptr<client::JobClient>> Connect(
    const ConnectionFlags& flags, const std::function<bool()>& should_stop) {
  security::SilenceGrpc();
  client::ClientOptions options;
  ASSIGN_OR_RETURN(options.address, client::ChooseAddress(flags.address));
  options.tls = flags.tls;
  options.insecure = flags.insecure;
  options.retry = RetryOf(flags, should_stop);
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
  std::string command = absl::StrCat("megascale ", words);
  const auto append = [&](const char* name, const std::string& value) {
    if (!value.empty()) absl::StrAppend(&command, " ", name, " ", ShellWord(value));
  };
  append("--address", flags.address);
  append("--tls-ca", flags.tls.ca);
  append("--tls-cert", flags.tls.certificate);
  append("--tls-key", flags.tls.key);
  return absl::StrCat(command, flags.insecure ? " --insecure" : "");
}

}  // namespace megascale::cli
