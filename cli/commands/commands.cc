#include "cli/commands/commands.h"

#include "cli/minder/minder_command.h"

namespace megascale::cli {

void AddCommands(CommandLine* line, const actors::MakeDevice& make_device,
                 const machine::MakeDevices& make_tested_devices,
                 const telemetry::ReadGpus& read_gpus) {
  AddLocalCommand(line);
  AddSubmitCommand(line);
  AddStatusCommand(line);
  AddListCommand(line);
  AddWatchCommand(line);
  AddWaitCommand(line);
  AddLogsCommand(line);
  AddMetricsCommand(line);
  AddTraceCommand(line);
  AddDiagnoseCommand(line);
  AddMinderCommand(line);
  AddCancelCommand(line);
  AddNodesCommand(line);
  AddEvictCommand(line);
  AddUncordonCommand(line);
  AddSparesCommand(line);
  AddPlanCommand(line);
  AddGenerateCommand(line);
  AddEvaluateCommand(line);
  AddCheckpointCommand(line);
  AddTokenizerCommand(line);
  AddDriverCommand(line);
  AddAgentCommand(line, read_gpus);
  AddCertsCommand(line);
  AddCompletionCommand(line);
  AddVersionCommand(line);
  AddProcessCommands(line, make_device, make_tested_devices);
}

}  // namespace megascale::cli
