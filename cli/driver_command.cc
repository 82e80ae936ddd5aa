#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
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
  command->Text("--tls-ca", &flags->tls.ca,
                "PEM file that users' and agents' certificates are signed by");
  command->Text("--tls-cert", &flags->tls.certificate, "PEM file of the driver's certificate");
  command->Text("--tls-key", &flags->tls.key, "PEM file of its private key");
  command->Flag("--insecure", &flags->insecure, "no TLS; for loopback addresses only");
  command->Examples(
      "megascale driver\n"
      "megascale driver --state-dir /srv/megascale --listen 10.0.0.1:7077 \\\n"
      "  --tls-ca ca.pem --tls-cert driver.pem --tls-key driver.key");
  command->Runs([flags] { return RunDriverCommand(*flags); });
}

}  // namespace megascale::cli
