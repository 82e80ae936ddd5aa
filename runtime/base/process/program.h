// The program that this process runs.
#pragma once

#include <string>
#include <vector>

namespace megascale::base {

// Where it lies; "" where the system does not say.
std::string ProgramPath();

// Starts it again in this process, with what `environment` ("NAME=value") has and the process's own
// has not; returns where nothing is missing, or where that fails. For main, before there are
// threads or files that are to live on: libraries read their environment when they are loaded.
void EnterEnvironment(const std::vector<std::string>& environment, char** argv);

}  // namespace megascale::base
