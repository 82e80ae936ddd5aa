#include "cli/commands/commands.h"

#include "cli/commands/submit.h"
#include "cli/launch/launch_command.h"
#include "cli/minder/minder_command.h"

namespace megascale::cli {
namespace {

absl::StatusOr<control::v1::SubmitJobRequest> MakeJobOfLaunch(const LaunchJob& job) {
  JobFlags flags;
  flags.file = job.file;
  flags.overrides = job.overrides;
  flags.job_id = job.job_id;
  return MakeSubmitRequest(flags, JobPlace::kElsewhere);
}

}  // namespace

void AddCommands(CommandLine* line, const actors::MakeDevice& make_device,
                 const machine::MakeDevices& make_tested_devices,
                 const telemetry::ReadGpus& read_gpus) {
  line->Group("On this machine, without a driver:");
  AddLocalCommand(line);
  AddPlanCommand(line);
  AddGenerateCommand(line);
  AddEvaluateCommand(line);
  AddCheckpointCommand(line);
  AddTokenizerCommand(line);
  line->Group("Jobs of a cluster:");
  AddSubmitCommand(line);
  AddStatusCommand(line);
  AddListCommand(line);
  AddWatchCommand(line);
  AddWaitCommand(line);
  AddCancelCommand(line);
  line->Group("What a job did, and why:");
  AddLogsCommand(line);
  AddMetricsCommand(line);
  AddTraceCommand(line);
  AddDiagnoseCommand(line);
  AddMinderCommand(line);
  line->Group("A cluster and its machines:");
  AddDriverCommand(line);
  AddAgentCommand(line, read_gpus);
  AddLaunchCommand(line, MakeJobOfLaunch);
  AddCertsCommand(line);
  AddNodesCommand(line);
  AddSparesCommand(line);
  AddEvictCommand(line);
  AddUncordonCommand(line);
  line->Group("This program:");
  line->AddHelp();
  AddCompletionCommand(line);
  AddVersionCommand(line);
  AddProcessCommands(line, make_device, make_tested_devices);
}

}  // namespace megascale::cli
