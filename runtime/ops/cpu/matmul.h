// Matrix products with oneDNN. Threads share a large fp32 product and each call oneDNN's sgemm. For
// any other product, the engine prepares a oneDNN primitive when the shape first occurs, and keeps
// it. Later calls with that shape only set addresses.
//
// On processors without bf16 instructions, bf16 operands are converted and multiplied in fp32,
// because oneDNN has no or only slow bf16 products there. Threads: one at a time. Determinism:
// fixed by shape, dtype, `num_threads` and instruction set; oneDNN may also use the sizes of the
// caches.
#pragma once

#include <memory>

#include "runtime/ops/ops.h"

namespace megascale::ops::cpu {

// Returns whether InstructionSet() has instructions that multiply bf16. Every processor with matrix
// tiles also has such vector instructions.
bool MultipliesBFloat16();

// Bytes of the copies that a product with these arguments needs.
struct ProductCopies {
  int64_t a = 0;
  int64_t b = 0;
  int64_t c = 0;
  int64_t packed_b = 0;
  int64_t in_gemm = 0;  // allocated by oneDNN's sgemm while it runs
};
ProductCopies CopiesOf(const MatMulArgs& args, int num_threads);

class MatMulEngine {
 public:
  explicit MatMulEngine(int num_threads);
  ~MatMulEngine();

  // Requires: CheckArguments passed. a and b have the same dtype, F32 or BF16.
  void Run(const MatMulArgs& args);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace megascale::ops::cpu
