// The program that this process runs.
#pragma once

#include <string>
#include <vector>

namespace megascale::base {

// Returns the path of the program; "" if the system does not tell.
std::string ProgramPath();

// Restarts the program in this process with the entries of `environment` ("NAME=value") that the
// process's own environment lacks. Returns if nothing is missing, or if the restart fails. Call it
// in main, before the process has threads or files that must stay open. A restart is needed because
// libraries read their environment when they are loaded.
void EnterEnvironment(const std::vector<std::string>& environment, char** argv);

}  // namespace megascale::base
