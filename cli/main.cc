// The program. Starts no thread before a command runs: driver, agent and local fork first.
#include "cli/command_line.h"
#include "cli/commands.h"

int main(int argc, char** argv) {
  using namespace megascale::cli;
  CommandLine line("megascale",
                   "Trains language models on many machines, and on this one.\n"
                   "Start here: megascale local examples/fortunes.yaml --agents 2 --slots 2");
  AddLocalCommand(&line);
  AddSubmitCommand(&line);
  AddStatusCommand(&line);
  AddListCommand(&line);
  AddWatchCommand(&line);
  AddWaitCommand(&line);
  AddLogsCommand(&line);
  AddCancelCommand(&line);
  AddGenerateCommand(&line);
  AddEvaluateCommand(&line);
  AddCheckpointCommand(&line);
  AddDriverCommand(&line);
  AddAgentCommand(&line);
  AddVersionCommand(&line);
  AddProcessCommands(&line);
  return line.Run(argc, argv);
}
