#include "cli/program.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "cli/command_line/command_line.h"
#include "cli/commands/commands.h"
#include "runtime/base/fd.h"
#include "runtime/base/process/program.h"
#include "runtime/base/process/thread_environment.h"
#include "runtime/base/version.h"

namespace megascale::cli {
namespace {

// True for commands that compute in this process, while other programs use the machine.
bool Computes(absl::string_view command) {
  return command == "local" || command == "evaluate" || command == "generate";
}

}  // namespace

int RunProgram(int argc, char** argv, const actors::MakeDevice& make_device,
               const machine::MakeDevices& make_tested_devices,
               const telemetry::ReadGpus& read_gpus) {
  if (argc > 1 && Computes(argv[1])) base::EnterEnvironment(base::ThreadEnvironment(false), argv);
  base::RaiseOpenFilesLimit();
  // Debian's abseil looks for deadlocks at each lock of gRPC's; tests, which do not run this, keep
  // it.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  CommandLine line("megascale",
                   "Trains language models on many machines, and on this one.\n"
                   "Start here: megascale local examples/fortunes.yaml --agents 2 --slots 2");
  line.SetVersion(absl::StrCat("megascale ", base::kVersion));
  AddCommands(&line, make_device, make_tested_devices, read_gpus);
  return line.Run(argc, argv);
}

}  // namespace megascale::cli
