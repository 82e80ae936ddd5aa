#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/connection.h"
#include "cli/report.h"
#include "controlplane/client/address.h"
#include "controlplane/driver/driver_server.h"
#include "runtime/base/log.h"

namespace megascale::cli {
namespace {

std::string DefaultStateDirectory() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return absl::StrCat(state, "/megascale/driver");
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return absl::StrCat(home, "/.local/state/megascale/driver");
  return absl::StrCat("/var/tmp/megascale-", getuid(), "/driver");
}

int RunDriverCommand(const driver::DriverOptions& flags) {
  const auto address = client::ChooseAddress(flags.listen_address);
  if (!address.ok()) return ReportError(address.status());
  base::InitLog("driver", base::LogLevel::kInfo);
  driver::DriverOptions options = flags;
  options.listen_address = address->text;
  options.state_directory = AbsolutePath(flags.state_directory);
  const absl::Status status = driver::RunDriver(options);
  return status.ok() ? kExitGood : ReportError(status);
}

}  // namespace

void AddDriverCommand(CommandLine* line) {
  auto flags = std::make_shared<driver::DriverOptions>();
  flags->state_directory = DefaultStateDirectory();
  Command* command = line->Add("driver", "runs the driver: takes jobs, places them, recovers them");
  command->Text("--listen", &flags->listen_address,
                "where: unix:/path or host:port (default: MEGASCALE_ADDRESS, else a socket in the "
                "user's runtime directory)");
  command->Text("--state-dir", &flags->state_directory, "keeps the log of jobs and their folders");
  command->Integer("--keep-jobs", &flags->retention.newest,
                   "ended jobs that stay in the list: the newest so many");
  command->Duration("--keep-jobs-for", &flags->retention.age,
                    "and those that ended less than this ago; folders and checkpoints always stay");
  AddTlsOptions(command, "users and agents", "this driver", &flags->tls, &flags->insecure);
  command->Details(
      "Decides which job runs where, keeps that on disk, and recovers jobs whose processes or "
      "machines "
      "are lost. Workers go on while it is away; start it again with the same --state-dir.\n"
      "It listens on a Unix socket that only its owner can use, unless --listen names a TCP "
      "address: "
      "that needs mutual TLS (megascale certs init makes the files).");
  command->Examples(
      "megascale driver\n"
      "megascale driver --state-dir /srv/megascale --listen 10.0.0.1:7077 \\\n"
      "  --tls-ca ca.pem --tls-cert driver.pem --tls-key driver.key");
  command->Runs([flags] { return RunDriverCommand(*flags); });
}

}  // namespace megascale::cli
