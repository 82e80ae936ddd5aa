// A device for jobs of many workers on a few cores: each instruction that computes takes a set
// time, of which a small part keeps a core busy, so that a quota of processor time slows it down.
// Exchanges and everything else are the CPU's, and so are the bits.
//
// Four faults are switched on and off by files in the folder that MEGASCALE_PACE names, which a
// test writes while the job trains: "slow-RANK" with a number makes computing take that many times
// as long, "late-RANK" with two numbers lets each exchange begin that many seconds late with that
// probability, and "copy-RANK" with a number makes each copy of memory take that many seconds
// longer for each byte. The fourth, "send-RANK", is that of slow_send.h. RANK counts the ranks of
// the machine from 0. Without such a folder no core is kept busy: a job of few steps then lasts,
// and costs little (Cluster::PaceJobs). Threads: as every device.
#pragma once

#include <memory>
#include <string>

#include "runtime/device/device.h"

namespace megascale::injection {

// `folder`: empty if there is none.
std::unique_ptr<device::Device> MakePacedDevice(int local_rank, const std::string& folder);

}  // namespace megascale::injection
