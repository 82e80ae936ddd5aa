// A communicator of a device whose memory is the host's: passes each call on as it is.
#pragma once

#include <memory>

#include "runtime/device/device.h"

namespace megascale::device {

// `device` must be able to give every tensor as host memory (Device::OnHost). Both are borrowed.
std::unique_ptr<comm::Communicator> MakeDirectCommunicator(const Device* device,
                                                           comm::HostCommunicator* host);

}  // namespace megascale::device
