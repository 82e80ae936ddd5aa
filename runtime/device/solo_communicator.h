// The communicator of a group of one rank on a device with memory of its own: where other
// communicators stage through the host, it copies on the device, or does nothing. Waits for no
// work, and takes no memory.
#pragma once

#include <memory>

#include "runtime/device/device.h"

namespace megascale::device {

// `host`: the group's, which records the calls and ends them after an abort. Both are borrowed.
// Requires: host->size() is 1.
std::unique_ptr<comm::Communicator> MakeSoloCommunicator(comm::HostCommunicator* host,
                                                         stream::Stream* stream);

}  // namespace megascale::device
