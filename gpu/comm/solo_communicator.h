// The communicator of a group of one rank: sums and exchanges are copies on the stream.
#pragma once

#include <memory>
#include <string>

#include "gpu/cuda/cuda_api.h"
#include "runtime/comm/communicator.h"

namespace megascale::cuda {

// `cuda` must outlive the communicator.
std::unique_ptr<comm::Communicator> MakeSoloCommunicator(std::string name, const CudaApi* cuda,
                                                         cudaStream_t stream);

}  // namespace megascale::cuda
