// `megascale minder`: finds the machine of a job that differs from the others, and tells the
// driver.
#pragma once

#include "cli/command_line/command_line.h"

namespace megascale::cli {

// Adds `minder` with `watch`, `check`, `record` and `train`.
void AddMinderCommand(CommandLine* line);

}  // namespace megascale::cli
