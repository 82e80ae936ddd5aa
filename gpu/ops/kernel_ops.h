// An ops::Ops that uses our own kernels and a library's matrix products, all in the order of one
// stream.
#pragma once

#include <functional>
#include <memory>

#include "gpu/ops/launcher.h"
#include "runtime/ops/ops.h"

namespace megascale::gpu {

// Makes matrix products in the order of the launcher's stream.
struct ProductMaker {
  // Computes a product with the epilogue for which `fuses` returns true, and without other
  // epilogues.
  std::function<void(const ops::MatMulArgs& args)> multiply;
  // Whether `multiply` computes the epilogue of these arguments, too; null: never.
  std::function<bool(const ops::MatMulArgs& args)> fuses = nullptr;
};

// `compute`: kF32 or kBF16. Threads: as `launcher`.
std::unique_ptr<ops::Ops> MakeKernelOps(tensor::DType compute, std::unique_ptr<Launcher> launcher,
                                        ProductMaker products);

}  // namespace megascale::gpu
