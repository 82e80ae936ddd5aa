// The batch scripts of a launch, and the options of sbatch that users give. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace megascale::nodes {

// Returns a script that replaces itself by the program with these arguments; each word is quoted
// for the shell.
std::string BatchScript(const std::vector<std::string>& words);

// Checks options that users pass on to sbatch. Refused are those that the launch itself gives
// (--nodes, --job-name, --array, …) and words that are no options, which sbatch would take for a
// script. Errors: InvalidArgument - names the option.
absl::Status CheckSbatchOptions(const std::vector<std::string>& options);

}  // namespace megascale::nodes
