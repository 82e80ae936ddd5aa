// The program from its first line on, for every binary that is it: the one that users run, and
// those of tests whose workers compute on other devices.
#pragma once

#include "actors/make_device.h"
#include "runtime/machine/machine_check.h"
#include "runtime/telemetry/gpu_metrics.h"

namespace megascale::cli {

// Runs the command that the arguments name, and returns the process's exit status. `make_device`
// makes the devices of workers and hosts, `make_tested_devices` those that tests of the machine
// include, and `read_gpus` reads what GPUs do; empty: none.
int RunProgram(int argc, char** argv, const actors::MakeDevice& make_device,
               const machine::MakeDevices& make_tested_devices = {},
               const telemetry::ReadGpus& read_gpus = {});

}  // namespace megascale::cli
