#include <cstdio>
#include <memory>
#include <string>

#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "runtime/base/version.h"
#include "runtime/checkpoint/numerics.h"
#include "runtime/ops/ops.h"

namespace megascale::cli {
namespace {

int PrintVersion(const std::string& format) {
  if (!CheckOutputFormat(format)) return kExitUsage;
  const std::string numerics(checkpoint::kNumericsVersion);
  if (format == "json") {
    JsonObject object;
    object.Add("version", base::kVersion);
    object.Add("numerics_version", numerics);
    object.Add("instruction_set", ops::InstructionSet());
    std::printf("%s\n", object.Finish().c_str());
  } else {
    std::printf("megascale %s (numerics %s, %s)\n", base::kVersion, numerics.c_str(),
                ops::InstructionSet());
  }
  return kExitGood;
}

}  // namespace

void AddVersionCommand(CommandLine* line) {
  auto format = std::make_shared<std::string>("text");
  Command* command = line->Add("version", "shows the version and this machine's instruction set");
  AddOutputOption(command, format.get());
  command->Examples("megascale version -o json");
  command->Runs([format] { return PrintVersion(*format); });
}

}  // namespace megascale::cli
