// ops::Ops made of our own kernels and of a library's matrix products, all in the order of one
// stream.
#pragma once

#include <functional>
#include <memory>

#include "gpu/ops/launcher.h"
#include "runtime/ops/ops.h"

namespace megascale::gpu {

// Makes matrix products in the order of the launcher's stream.
struct ProductMaker {
  // Computes a product with the epilogues that `fuses` names, and without others.
  std::function<void(const ops::MatMulArgs& args)> multiply;
  // Whether `multiply` computes the epilogue of these arguments, too; null: never.
  std::function<bool(const ops::MatMulArgs& args)> fuses = nullptr;
};

// `compute`: kF32 or kBF16. Threads: those of `launcher`.
std::unique_ptr<ops::Ops> MakeKernelOps(tensor::DType compute, std::unique_ptr<Launcher> launcher,
                                        ProductMaker products);

}  // namespace megascale::gpu
