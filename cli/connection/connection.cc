#include "cli/connection/connection.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/command_line/report.h"
#include "controlplane/address/address.h"
#include "controlplane/security/grpc_log.h"
#include "runtime/base/status.h"
#include "runtime/job/job_spec.h"

namespace megascale::cli {
namespace {

// Appends the options in `flags` that were given; `address_option`: by which name the driver's
// address goes.
void AppendFlags(const char* address_option, const ConnectionFlags& flags, std::string* command) {
  const auto append = [&](const char* name, const std::string& value) {
    if (!value.empty()) absl::StrAppend(command, " ", name, " ", ShellWord(value));
  };
  append(address_option, flags.address);
  append("--tls-ca", flags.tls.ca);
  append("--tls-cert", flags.tls.certificate);
  append("--tls-key", flags.tls.key);
  absl::StrAppend(command, flags.insecure ? " --insecure" : "");
}

// True for "megascale status", "megascale submit FILE": it asks the driver, and has its arguments.
// `megascale diagnose --saved FILE` and `minder train` read files.
bool AsksDriver(absl::string_view command) {
  const std::vector<absl::string_view> words = absl::StrSplit(command, ' ', absl::SkipEmpty());
  if (words.size() < 2 || words[0] != "megascale") return false;
  const auto is_one_of = [&](const std::vector<absl::string_view>& names) {
    return absl::c_linear_search(names, words[1]);
  };
  if (is_one_of({"status", "list", "nodes", "spares"})) return true;
  if (words.size() > 3 && words[1] == "minder") return words[2] != "train";
  if (words.size() > 2 && words[1] == "diagnose") return !absl::StartsWith(words[2], "-");
  return words.size() > 2 && is_one_of({"submit", "wait", "watch", "logs", "metrics", "trace",
                                        "cancel", "evict", "uncordon"});
}

// Returns what to do about a driver that is not there.
std::string AdviceOf(const ConnectionFlags& flags) {
  constexpr char kOther[] = ", or name another one with --address or MEGASCALE_ADDRESS";
  if (flags.tls.any()) {  // a driver has a certificate of its own
    return absl::StrCat("start it with `megascale driver --listen ",
                        flags.address.empty() ? "ADDRESS" : ShellWord(flags.address),
                        "` and its own --tls-ca, --tls-cert and --tls-key", kOther);
  }
  std::string command = "megascale driver";
  AppendFlags("--listen", flags, &command);
  return absl::StrCat("start one with `", command, "`", kOther);
}

}  // namespace

void AddTlsOptions(Command* command, const std::string& peer, const std::string& own,
                   security::TlsFiles* tls, bool* insecure) {
  command->Path("--tls-ca", &tls->ca,
                absl::StrCat("PEM file of the authority that signed the certificates of ", peer));
  command->Path("--tls-cert", &tls->certificate,
                absl::StrCat("PEM file of the certificate of ", own));
  command->Path("--tls-key", &tls->key, "PEM file of its private key; for its owner only");
  command->Flag("--insecure", insecure, "plaintext; for loopback addresses only");
}

void AddConnectionOptions(Command* command, ConnectionFlags* flags) {
  command->Address(
      "--address", &flags->address,
      "the driver: unix:/path or host:port (default: MEGASCALE_ADDRESS, else a socket in "
      "the user's runtime directory)");
  AddTlsOptions(command, "the driver", "this client", &flags->tls, &flags->insecure);
  command->MoveToConnection({"--address", "--tls-ca", "--tls-cert", "--tls-key", "--insecure"});
}

void AddRetryOption(Command* command, ConnectionFlags* flags) {
  command->Duration("--retry-for", &flags->retry_for,
                    "how long to wait for a driver that does not answer; for commands that read, "
                    "and submit");
  command->MoveToConnection({"--retry-for"});
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
  *request.mutable_grace() = job::FromDuration(grace);
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
  AppendFlags("--address", flags, &command);
  return command;
}

std::string CompleteCommands(absl::string_view text, const ConnectionFlags& flags) {
  std::vector<std::string> parts = absl::StrSplit(text, '`');
  // Every second part stands between two backquotes.
  for (size_t i = 1; i + 1 < parts.size(); i += 2) {
    if (AsksDriver(parts[i])) AppendFlags("--address", flags, &parts[i]);
  }
  return absl::StrJoin(parts, "`");
}

control::v1::Job CompleteCommands(control::v1::Job job, const ConnectionFlags& flags) {
  job.set_message(CompleteCommands(job.message(), flags));
  return job;
}

int ReportCallError(const absl::Status& status, const ConnectionFlags& flags) {
  return ReportError(absl::Status(status.code(), CompleteCommands(status.message(), flags)),
                     absl::IsUnavailable(status) ? AdviceOf(flags) : "");
}

}  // namespace megascale::cli
