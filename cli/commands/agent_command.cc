#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/connection/connection.h"
#include "controlplane/address/address.h"
#include "controlplane/agent/service/agent_server.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/job/names.h"

namespace megascale::cli {
namespace {

struct AgentFlags {
  agent::AgentOptions options;
  int64_t slots = 1;
};

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "node";
}

// Makes `path` absolute; if it is empty, takes the environment variable. For options that are
// easier to set in the environment: `megascale local` passes no options on, and service files set
// variables.
absl::Status CompletePath(const char* variable, std::string* path) {
  const char* set = path->empty() ? std::getenv(variable) : nullptr;
  *path = AbsolutePath(set == nullptr ? *path : set);
  return path->empty() ? absl::OkStatus() : job::CheckPath(variable, *path);
}

absl::Status CompleteStoreAccess(agent::StoreAccess* store) {
  RETURN_IF_ERROR(CompletePath("MEGASCALE_STORE_PASSWORDS", &store->password_file));
  RETURN_IF_ERROR(CompletePath("MEGASCALE_STORE_CA", &store->tls.ca_file));
  RETURN_IF_ERROR(CompletePath("MEGASCALE_STORE_CERT", &store->tls.certificate_file));
  return CompletePath("MEGASCALE_STORE_KEY", &store->tls.key_file);
}

int RunAgentCommand(const AgentFlags& flags) {
  if (flags.slots < 1 || flags.slots > agent::kSlotsMax) {
    return ReportError(absl::InvalidArgumentError(absl::StrCat(
        "--slots: ", flags.slots, " is out of range; expected 1 to ", agent::kSlotsMax)));
  }
  const auto address = client::ChooseAddress(flags.options.driver_address);
  if (!address.ok()) return ReportError(address.status());
  agent::AgentOptions options = flags.options;
  options.driver_address = address->text;
  options.num_slots = static_cast<int>(flags.slots);
  if (options.node_id.empty()) options.node_id = HostName();
  if (options.run_directory.empty()) {
    options.run_directory = absl::StrCat("/tmp/megascale-", getuid(), "/",
                                         absl::StrReplaceAll(options.node_id, {{"/", "_"}}));
  }
  options.run_directory = AbsolutePath(options.run_directory);
  options.state_directory = AbsolutePath(options.state_directory);
  options.log_directory = AbsolutePath(options.log_directory);
  if (const absl::Status access = CompleteStoreAccess(&options.store); !access.ok()) {
    return ReportError(access);
  }
  ::prctl(PR_SET_NAME, "megascale-agent");  // what ps and ss show
  base::InitLog(absl::StrCat("agent ", options.node_id), base::LogLevel::kInfo);
  const absl::Status status = agent::RunAgent(options);
  return status.ok() ? kExitGood : ReportError(status);
}

}  // namespace

void AddAgentCommand(CommandLine* line, const telemetry::ReadGpus& read_gpus) {
  auto flags = std::make_shared<AgentFlags>();
  flags->options.read_gpus = read_gpus;
  agent::AgentOptions* options = &flags->options;
  Command* command =
      line->Add("agent", "runs this machine's agent: starts and watches its workers");
  command->Address(
      "--driver", &options->driver_address,
      "the driver: unix:/path or host:port (default: MEGASCALE_ADDRESS, else a socket in "
      "the user's runtime directory)");
  command->Integer("--slots", &flags->slots, "maximum number of worker processes");
  command->Text("--node-id", &options->node_id,
                "its name, kept over restarts (default: the host's name)");
  command->Path("--run-dir", &options->run_directory,
                "owner-only folder for sockets (default: /tmp/megascale-UID/NODE)");
  command->Path("--state-dir", &options->state_directory,
                "keeps the key by which the driver knows this agent again (default: RUN-DIR)");
  command->Path("--log-dir", &options->log_directory,
                "output of its workers (default: RUN-DIR/logs)");
  command->Text(
      "--interface", &options->interface,
      "address or name that tensor sockets between machines use (default: the driver's route)");
  command->Duration("--drain-timeout", &options->drain_timeout,
                    "SIGTERM makes its jobs leave, and ends it after this time at the latest");
  AddTlsOptions(command, "the driver", "this agent", &options->tls, &options->insecure);
  command->Path("--store-passwords", &options->store.password_file,
                "file of lines `redis://HOST:PORT PASSWORD` for jobs with a `store` (default: "
                "MEGASCALE_STORE_PASSWORDS)");
  command->Path("--store-ca", &options->store.tls.ca_file,
                "PEM file that the certificate of a store at rediss:// is signed by (default: "
                "MEGASCALE_STORE_CA, else the system's)");
  command->Path("--store-cert", &options->store.tls.certificate_file,
                "PEM file of this agent's certificate for it (default: MEGASCALE_STORE_CERT)");
  command->Path("--store-key", &options->store.tls.key_file,
                "PEM file of its private key (default: MEGASCALE_STORE_KEY)");
  command->Details(
      "One on every machine of a cluster. It survives the driver's absence; when it ends, so do "
      "its "
      "workers. An agent whose certificate the driver refuses ends at once and says why; a driver "
      "that is not there is waited for. While a healthy agent has the same --node-id, this one "
      "says "
      "so and asks again; it never ends the other agent's workers.");
  command->Examples(
      "megascale agent --slots 2\n"
      "megascale agent --driver 10.0.0.1:7077 --slots 8 \\\n"
      "  --tls-ca ca.pem --tls-cert n1.pem --tls-key n1.key");
  command->Runs([flags] { return RunAgentCommand(*flags); });
}

}  // namespace megascale::cli
