// The subcommands. Each is in its own file and adds itself to the program's grammar.
#pragma once

#include "actors/worker_main.h"
#include "cli/command_line/command_line.h"
#include "runtime/machine/machine_check.h"
#include "runtime/telemetry/gpu_metrics.h"

namespace megascale::cli {

// Adds all commands, in the order in which --help shows them. The other arguments are as in
// RunProgram.
void AddCommands(CommandLine* line, const actors::MakeDevice& make_device,
                 const machine::MakeDevices& make_tested_devices,
                 const telemetry::ReadGpus& read_gpus);

void AddDriverCommand(CommandLine* line);
void AddAgentCommand(CommandLine* line, const telemetry::ReadGpus& read_gpus);
void AddSubmitCommand(CommandLine* line);
void AddStatusCommand(CommandLine* line);
void AddListCommand(CommandLine* line);
void AddWaitCommand(CommandLine* line);
void AddWatchCommand(CommandLine* line);
void AddLogsCommand(CommandLine* line);
void AddMetricsCommand(CommandLine* line);
void AddTraceCommand(CommandLine* line);
void AddDiagnoseCommand(CommandLine* line);
void AddCancelCommand(CommandLine* line);
void AddEvictCommand(CommandLine* line);
void AddUncordonCommand(CommandLine* line);
void AddNodesCommand(CommandLine* line);
void AddSparesCommand(CommandLine* line);
void AddLocalCommand(CommandLine* line);
void AddPlanCommand(CommandLine* line);
void AddGenerateCommand(CommandLine* line);
void AddEvaluateCommand(CommandLine* line);
void AddCheckpointCommand(CommandLine* line);
void AddTokenizerCommand(CommandLine* line);
void AddCertsCommand(CommandLine* line);
void AddCompletionCommand(CommandLine* line);
void AddVersionCommand(CommandLine* line);
// Adds the hidden commands of processes that an agent starts.
void AddProcessCommands(CommandLine* line, const actors::MakeDevice& make_device,
                        const machine::MakeDevices& make_tested_devices);

}  // namespace megascale::cli
