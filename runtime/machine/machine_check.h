// Tests the machine it runs on: memory, processor cores, loopback network, disk, the directories of
// jobs, and devices such as GPUs. Open this header first; part.h defines the result of a part.
//
// A quick check takes about a second, a full one at most half a minute. A busy or slow machine
// takes longer, but still passes. If a part fails, the others run nevertheless.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/agent.pb.h"
#include "runtime/device/check/device_check.h"
#include "runtime/device/device.h"
#include "runtime/machine/device_exchange_check.h"

namespace megascale::machine {

// Makes the devices of the machine that are tested in addition to its processors. Errors: Internal
// - a device failed, which fails the check; any other error becomes a note.
using MakeDevices = std::function<absl::StatusOr<std::vector<std::unique_ptr<device::Device>>>()>;

struct CheckOptions {
  megascale::agent::v1::MachineTestRequest request;
  std::string own_directory;      // on a disk of this machine
  MakeDevices make_devices = {};  // empty: there are none
  // For tests; unset: the kind of the check decides.
  std::optional<device::check::CheckOptions> device_check = {};
  std::optional<DeviceExchangeOptions> device_exchange = {};
};

// Runs all parts and returns their results, PASSED or FAILED. `on_part` is called before each part,
// with the results so far (RUNNING). Blocking. Threads: it starts one for each core and one for
// each device; they end before it returns.
megascale::agent::v1::MachineTest CheckMachine(
    const CheckOptions& options,
    const std::function<void(const megascale::agent::v1::MachineTest&)>& on_part);

// The main function of the test process: takes a TestAssignment from the agent over this inherited
// socket, runs the parts and reports their results. Returns the exit status.
int RunCheckProcess(int link_fd, MakeDevices make_devices);

}  // namespace megascale::machine
