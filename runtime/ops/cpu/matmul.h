// Matrix products on oneDNN. Large fp32 products are shared among threads that each call its sgemm;
// any other is prepared when its shape is first seen and kept, and later calls of the same shape
// only set addresses.
//
// Where the processor has no bf16 instructions, bf16 operands are converted and multiplied in fp32:
// oneDNN has no bf16 products there, or slow ones.
// Threads: one at a time. Determinism: fixed by shape, dtype, `num_threads` and instruction set.
// oneDNN may also ask for the sizes of the caches.
#pragma once

#include <memory>

#include "runtime/ops/ops.h"

namespace megascale::ops::cpu {

// Whether InstructionSet() names instructions that multiply bf16: every processor with matrix tiles
// has such vectors too.
bool MultipliesBFloat16();

// Bytes of the copies that a product of such arguments needs; their data may be null.
struct ProductCopies {
  int64_t a = 0;
  int64_t b = 0;
  int64_t c = 0;
  int64_t packed_b = 0;
  int64_t in_gemm = 0;  // taken by oneDNN's sgemm while it runs
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
