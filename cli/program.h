// The program from its first line on, for every binary that is it: the one that users run, and
// those of tests whose workers compute on other devices.
#pragma once

#include "actors/make_device.h"

namespace megascale::cli {

// Runs the command that the arguments name, and returns the process's exit status. `make_device`
// makes the devices of workers and hosts.
int RunProgram(int argc, char** argv, const actors::MakeDevice& make_device);

}  // namespace megascale::cli
