#include <sys/prctl.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/commands/connection.h"
#include "controlplane/address/address.h"
#include "controlplane/driver/service/driver_server.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"

namespace megascale::cli {
namespace {

std::string DefaultStateDirectory() {
  const std::string state = base::UserStateDirectory();
  return state.empty() ? absl::StrCat("/var/tmp/megascale-", getuid(), "/driver")
                       : absl::StrCat(state, "/driver");
}

int RunDriverCommand(const driver::DriverOptions& flags) {
  const auto address = client::ChooseAddress(flags.listen_address);
  if (!address.ok()) return ReportError(address.status());
  ::prctl(PR_SET_NAME, "megascale-drv");  // what ps and ss show
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
  command->Path("--listen", &flags->listen_address,
                "the address to listen on: unix:/path or host:port (default: MEGASCALE_ADDRESS, "
                "else a socket in the "
                "user's runtime directory)");
  command->Path("--state-dir", &flags->state_directory,
                "directory for the log of jobs and a folder for each job");
  command->Integer("--keep-jobs", &flags->retention.newest,
                   "the list of jobs keeps this many of those that ended last");
  command->Duration(
      "--keep-jobs-for", &flags->retention.age,
      "it also keeps jobs that ended less than this time ago; folders and checkpoints always stay");
  command->Duration("--node-timeout", &flags->node_timeout,
                    "a machine whose agent is silent for longer than this is lost: its jobs move");
  AddTlsOptions(command, "users and agents", "this driver", &flags->tls, &flags->insecure);
  command->Details(
      "Decides which job runs where, keeps that on disk, and recovers jobs whose processes or "
      "machines "
      "are lost. Workers go on while the driver is away; start it again with the same "
      "--state-dir.\n"
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
