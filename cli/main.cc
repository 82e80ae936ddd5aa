// The program. Starts no thread before a command runs: driver, agent and local fork first.
#include "cli/command_line.h"
#include "cli/commands.h"
#include "runtime/base/fd.h"

int main(int argc, char** argv) {
  using namespace megascale::cli;
  megascale::base::RaiseOpenFilesLimit();
  CommandLine line("megascale",
                   "Trains language models on many machines, and on this one.\n"
                   "Start here: megascale local examples/fortunes.yaml --agents 2 --slots 2");
  AddCommands(&line);
  return line.Run(argc, argv);
}
