// The program from its first line on, for every binary that is it: the one that users run, and
// those of tests whose workers compute on other devices.
#pragma once

#include "actors/worker_main.h"

namespace megascale::cli {

// Runs the command that the arguments name, and returns the process's exit status. `make_device`
// makes the devices of workers.
int RunProgram(int argc, char** argv, const actors::MakeDevice& make_device);

}  // namespace megascale::cli
