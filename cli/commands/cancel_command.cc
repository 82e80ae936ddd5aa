#include <cstdio>
#include <memory>
#include <string>

#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/connection/connection.h"
#include "cli/view/live_view.h"

namespace megascale::cli {
namespace {

struct CancelFlags {
  ConnectionFlags connection;
  std::string job_id;
  absl::Duration grace = absl::Seconds(30);
  bool checkpoint = false;
  std::string format = "text";
};

int Cancel(const CancelFlags& flags) {
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  const auto client = Connect(flags.connection);
  if (!client.ok()) return ReportError(client.status());
  const auto job =
      (*client)->Cancel(MakeCancelRequest(flags.job_id, flags.grace, flags.checkpoint));
  if (!job.ok()) return ReportCallError(job.status(), flags.connection);
  if (flags.format == "json") {
    PrintJson(*job, JsonLayout::kPretty);
  } else {
    std::printf("%s  %s\n", flags.job_id.c_str(),
                StateLine(CompleteCommands(*job, flags.connection)).c_str());
  }
  return kExitGood;
}

}  // namespace

void AddCancelCommand(CommandLine* line) {
  auto flags = std::make_shared<CancelFlags>();
  Command* command = line->Add("cancel", "stops a job; cancelling it again changes nothing");
  command->Positional("JOB", &flags->job_id, "the job's id");
  command->Duration("--grace", &flags->grace,
                    "time to finish the current step before it is killed");
  command->Flag("--checkpoint", &flags->checkpoint, "make a checkpoint first");
  AddOutputOption(command, &flags->format);
  AddConnectionOptions(command, &flags->connection);
  command->Details(
      "The job's ranks finish the current step, make a checkpoint if asked to, and exit; after "
      "--grace they are killed. Returns once the driver has recorded the request on disk, which "
      "is before the job has ended: megascale wait waits for its end.");
  command->Examples(
      "megascale cancel fortunes-1a2b3c4d\n"
      "megascale cancel --checkpoint --grace 2m fortunes-1a2b3c4d\n"
      "megascale cancel fortunes-1a2b3c4d && megascale wait fortunes-1a2b3c4d");
  command->Runs([flags] { return Cancel(*flags); });
}

}  // namespace megascale::cli
