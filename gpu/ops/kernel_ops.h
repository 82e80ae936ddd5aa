// ops::Ops made of our own kernels and of a library's matrix products, all in the order of one
// stream.
#pragma once

#include <functional>
#include <memory>

#include "gpu/ops/launcher.h"
#include "runtime/ops/ops.h"

namespace megascale::gpu {

// Computes a product without epilogues in the order of the launcher's stream.
using MultiplyMatrices = std::function<void(const ops::MatMulArgs& args)>;

// `compute`: kF32 or kBF16. Threads: those of `launcher`.
std::unique_ptr<ops::Ops> MakeKernelOps(tensor::DType compute, std::unique_ptr<Launcher> launcher,
                                        MultiplyMatrices multiply);

}  // namespace megascale::gpu
