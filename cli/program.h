// The whole program, for each binary: the binary that users run, and the binaries of tests whose
// workers compute on other devices.
#pragma once

#include "actors/make_device.h"
#include "runtime/machine/machine_check.h"
#include "runtime/telemetry/gpu_metrics.h"

namespace megascale::cli {

// Runs the command that the arguments name, and returns the process's exit status. `make_device`
// makes the devices of workers and host processes, `make_tested_devices` the devices that tests of
// the machine include, and `read_gpus` reads what GPUs do; empty: there are none.
int RunProgram(int argc, char** argv, const actors::MakeDevice& make_device,
               const machine::MakeDevices& make_tested_devices = {},
               const telemetry::ReadGpus& read_gpus = {});

}  // namespace megascale::cli
