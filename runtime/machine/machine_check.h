// Tests the machine it runs on: memory, processor cores, loopback network, disk and the directories
// of jobs. Open this header first; part.h says what a part gives.
//
// A quick check takes about a second, a full one at most half a minute; a busy or slow machine
// takes longer, and passes. A part that fails does not keep the others from running.
#pragma once

#include <functional>
#include <string>

#include "proto/agent.pb.h"

namespace megascale::machine {

struct CheckOptions {
  megascale::agent::v1::MachineTestRequest request;
  std::string own_directory;  // on a disk of this machine
};

// Runs all parts and returns their results, PASSED or FAILED. `on_part` is called before each part,
// with what is known by then (RUNNING). Blocking. Threads: it starts one for each core, which end
// before it returns.
megascale::agent::v1::MachineTest CheckMachine(
    const CheckOptions& options,
    const std::function<void(const megascale::agent::v1::MachineTest&)>& on_part);

// The main function of the test process: takes a TestAssignment from the agent over this inherited
// socket, runs the parts and tells their results. Returns the exit status.
int RunCheckProcess(int link_fd);

}  // namespace megascale::machine
