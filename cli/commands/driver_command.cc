#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/connection/connection.h"
#include "controlplane/address/address.h"
#include "controlplane/driver/service/driver_server.h"
#include "controlplane/driver/storage/log_backup.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/text/counted.h"

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

struct CopyFlags {
  std::string state_directory;
  std::string copy;
};

int BackUp(const CopyFlags& flags) {
  const absl::StatusOr<int> jobs =
      driver::BackUpLog(AbsolutePath(flags.state_directory), AbsolutePath(flags.copy));
  if (!jobs.ok()) return ReportError(jobs.status());
  std::printf("copied the log of %s to %s\n", base::Counted(*jobs, "job").c_str(),
              flags.copy.c_str());
  return kExitGood;
}

int Restore(const CopyFlags& flags) {
  const absl::StatusOr<int> jobs = driver::RestoreLog(
      AbsolutePath(flags.copy), AbsolutePath(flags.state_directory), base::RealClock().Wall());
  if (!jobs.ok()) return ReportError(jobs.status());
  std::printf("restored the log of %s from %s; start the driver\n",
              base::Counted(*jobs, "job").c_str(), flags.copy.c_str());
  return kExitGood;
}

void AddCopyCommands(Command* driver) {
  auto flags = std::make_shared<CopyFlags>();
  flags->state_directory = DefaultStateDirectory();
  Command* backup = driver->Add("backup", "copies the log of jobs; the driver may run meanwhile");
  backup->PathPositional("DIR", &flags->copy, "a new directory for the copy");
  backup->Path("--state-dir", &flags->state_directory, "the driver's state directory");
  backup->Details(
      "Jobs' folders with loss logs, and checkpoints, are files of their own and are not copied.");
  backup->Examples("megascale driver backup /backup/driver-monday");
  backup->Runs([flags] { return BackUp(*flags); });
  Command* restore = driver->Add("restore", "makes the log of a driver that lost it from a copy");
  restore->PathPositional("DIR", &flags->copy, "the copy that `megascale driver backup` made");
  restore->Path("--state-dir", &flags->state_directory, "the driver's state directory");
  restore->Details(
      "The copy begins a new epoch: agents end what an older one started, and every job goes on "
      "with another attempt, from the newest checkpoint that the copy knows. A driver that still "
      "runs on another copy stops when it hears of that.");
  restore->Examples("megascale driver restore /backup/driver-monday --state-dir /srv/megascale");
  restore->Runs([flags] { return Restore(*flags); });
}

}  // namespace

void AddDriverCommand(CommandLine* line) {
  auto flags = std::make_shared<driver::DriverOptions>();
  flags->state_directory = DefaultStateDirectory();
  Command* command = line->Add("driver", "runs the driver: takes jobs, places them, recovers them");
  command->Address("--listen", &flags->listen_address,
                   "the address to listen on: unix:/path or host:port (default: MEGASCALE_ADDRESS, "
                   "else a socket in the "
                   "user's runtime directory)");
  command->Text("--http", &flags->http_address,
                "serves a page that shows jobs and machines, and metrics for Prometheus, on this "
                "HOST:PORT; port 0: any free one (default: no page)");
  command->Path("--state-dir", &flags->state_directory,
                "directory for the log of jobs and a folder for each job");
  command->Integer("--keep-jobs", &flags->retention.newest,
                   "the list of jobs keeps this many of those that ended last");
  command->Duration(
      "--keep-jobs-for", &flags->retention.age,
      "it also keeps jobs that ended less than this time ago; folders and checkpoints always stay");
  command->Duration("--node-timeout", &flags->node_timeout,
                    "a machine whose agent is silent for longer than this is lost: its jobs move");
  command->Duration("--look-every", &flags->look_interval,
                    "how often the driver looks whether jobs stand still or have become slow; it "
                    "compares their steps over at least this time");
  flags->machine_tests.clear();
  command->Text("--machine-tests", &flags->machine_tests,
                "tests of a machine before it gets ranks, and after a failure that could be its "
                "own: off, quick (about a second) or full (half a minute); default: full on TCP, "
                "else quick");
  command->Number("--exchange-rate", &flags->exchange_rate,
                  "the rate in MB/s, each way, that two machines should reach when they test each "
                  "other; below half of it the test fails; 0: with full tests, the median of what "
                  "the machines reach");
  command->Flag("--agents-ended", &flags->agents_ended,
                "no agent that this state directory knows still runs, so that none is waited for");
  command->Duration("--drain-timeout", &flags->drain_timeout,
                    "after SIGTERM it still serves machines that have ranks, at most for "
                    "this time; 0: it ends at once");
  command->Integer("--slots-max", &flags->slots_max,
                   "refuses agents that offer more slots than this");
  command->Integer("--new-nodes-per-hour", &flags->new_nodes_per_hour,
                   "agents with one certificate may join under this many new node ids in an hour");
  command->Text("--join", &flags->join,
                "which new machines get ranks: any, or known: those that you name with `megascale "
                "uncordon`; `megascale nodes` shows which wait for that");
  AddTlsOptions(command, "users and agents", "this driver", &flags->tls, &flags->insecure);
  command->Details(
      "Decides which job runs where, keeps that on disk, and recovers jobs whose processes or "
      "machines "
      "are lost. Workers go on while the driver is away; start it again with the same "
      "--state-dir.\n"
      "It listens on a Unix socket that only its owner can use, unless --listen names a TCP "
      "address: "
      "that needs mutual TLS (megascale certs init makes the files).\n"
      "With --http it prints the URL of the page to a terminal, with a token that every reader "
      "needs; the URL is also in the file http-url of --state-dir, and in no log. Off this "
      "machine the page uses the TLS files above, and readers need a user's certificate, too. The "
      "page changes nothing.");
  command->Examples(
      "megascale driver\n"
      "megascale driver --http 127.0.0.1:7078\n"
      "megascale driver --state-dir /srv/megascale --listen 10.0.0.1:7077 \\\n"
      "  --tls-ca ca.pem --tls-cert driver.pem --tls-key driver.key");
  command->Runs([flags] { return RunDriverCommand(*flags); });
  AddCopyCommands(command);
}

}  // namespace megascale::cli
