// The cost of a call of Ops on any implementation: the model FLOPs of its matrix products and the
// fewest bytes that it moves through memory. Uses shapes alone, so the arguments' data may be null.
//
//   const Work work = WorkOf(args);
//   seconds = max(work.flops / rate, work.bytes / bandwidth);
//
// FLOPs: a multiply-add counts as two. Only matrix products count. Values that a kernel computes a
// second time, such as attention's scores in a backward pass, do not count. Bytes: each operand is
// read once and each result is written once.
#pragma once

#include <cstdint>

#include "runtime/ops/ops.h"

namespace megascale::ops {

struct Work {
  const char* name = "";  // the operator's: "matmul", "norm, backward"
  int64_t flops = 0;
  int64_t bytes = 0;
};

// Leaves out epilogues. An epilogue costs at most as much as its operator.
Work WorkOf(const MatMulArgs& args);
Work WorkOf(const NormArgs& args);
Work WorkOf(const NormBackwardArgs& args);
Work WorkOf(const AttentionArgs& args);
Work WorkOf(const AttentionBackwardArgs& args);
Work WorkOf(const RotaryArgs& args);
Work WorkOf(const ActivationArgs& args);
Work WorkOf(const ActivationBackwardArgs& args);
Work WorkOf(const EmbeddingArgs& args);
Work WorkOf(const EmbeddingBackwardArgs& args);
Work WorkOf(const LogitStatisticsArgs& args);
Work WorkOf(const CrossEntropyArgs& args);
Work WorkOf(const AdamWArgs& args);
Work WorkOf(absl::Span<const AdamWArgs> list);
Work WorkOf(absl::Span<const TrustStepArgs> list);
Work WorkOf(const CombineNormsArgs& args);

Work WorkOfAddColumnSums(const Matrix& x);
Work WorkOfAdd(const Matrix& out);
Work WorkOfAddScaled(const Vector& x);
Work WorkOfSumOfSquares(const Vector& x);
Work WorkOfCast(const Vector& from, const Vector& to);
Work WorkOfFillZero(const Vector& x);

}  // namespace megascale::ops
