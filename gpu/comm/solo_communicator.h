// The communicator of a group of one rank: sums and exchanges are copies on the stream.
#pragma once

#include <memory>

#include "gpu/comm/nccl_communicator.h"
#include "runtime/comm/communicator.h"

namespace megascale::cuda {

// Uses only `options.host`'s name of the group. Requires: the group has one rank.
std::unique_ptr<comm::Communicator> MakeSoloCommunicator(const NcclOptions& options);

}  // namespace megascale::cuda
