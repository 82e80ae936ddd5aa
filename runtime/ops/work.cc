#include "runtime/ops/work.h"

#include <algorithm>

namespace megascale::ops {
namespace {

int64_t Bytes(const Matrix& matrix) {
  return matrix.rows * matrix.cols * static_cast<int64_t>(tensor::SizeOf(matrix.dtype));
}

int64_t Bytes(const Vector& vector) {
  return vector.size * static_cast<int64_t>(tensor::SizeOf(vector.dtype));
}

// Returns how many pairs of query and key one head's sequence has under the causal mask and the
// window.
int64_t NumPairs(int64_t seq, int64_t window) {
  const int64_t width = window == 0 ? seq : std::min(window, seq);
  return width * (width + 1) / 2 + (seq - width) * width;
}

// Returns the FLOPs of one of attention's products over all heads; forward has two, backward four.
int64_t AttentionProductFlops(const AttentionArgs& args) {
  return 2 * args.batch * args.heads * args.head_dim * NumPairs(args.seq, args.window);
}

}  // namespace

Work WorkOf(const MatMulArgs& args) {
  const int64_t inner = args.transpose_a == Transpose::kYes ? args.a.rows : args.a.cols;
  return {"matmul", 2 * args.c.rows * args.c.cols * inner,
          Bytes(args.a) + Bytes(args.b) + Bytes(args.c) * (args.accumulate ? 2 : 1)};
}

Work WorkOf(const NormArgs& args) {
  return {"norm", 0, Bytes(args.x) * (args.delta.rows > 0 ? 4 : 2)};
}

Work WorkOf(const NormBackwardArgs& args) { return {"norm, backward", 0, Bytes(args.x) * 4}; }

Work WorkOf(const AttentionArgs& args) {
  return {"attention", 2 * AttentionProductFlops(args),
          Bytes(args.q) + Bytes(args.k) + Bytes(args.v) + Bytes(args.out)};
}

Work WorkOf(const AttentionBackwardArgs& args) {
  const AttentionArgs& forward = args.forward;
  return {"attention, backward", 4 * AttentionProductFlops(forward),
          2 * (Bytes(forward.q) + Bytes(forward.k) + Bytes(forward.v)) + Bytes(forward.out) +
              Bytes(args.d_out)};
}

Work WorkOf(const RotaryArgs& args) { return {"rotary", 0, Bytes(args.x) * 2}; }

Work WorkOf(const ActivationArgs& args) {
  return {"activation", 0, Bytes(args.in) + Bytes(args.out)};
}

Work WorkOf(const ActivationBackwardArgs& args) {
  return {"activation, backward", 0, Bytes(args.in) + Bytes(args.d_out) + Bytes(args.d_in)};
}

Work WorkOf(const EmbeddingArgs& args) { return {"embedding", 0, Bytes(args.out) * 2}; }

Work WorkOf(const EmbeddingBackwardArgs& args) {
  return {"embedding, backward", 0, Bytes(args.d_out)};
}

Work WorkOf(const LogitStatisticsArgs& args) {
  return {"cross-entropy, statistics", 0, Bytes(args.logits)};
}

Work WorkOf(const CrossEntropyArgs& args) {
  return {"cross-entropy", 0, Bytes(args.logits) * (args.backward ? 2 : 1)};
}

Work WorkOf(const AdamWArgs& args) {
  return {"adamw", 0,
          Bytes(args.grad) + Bytes(args.master) + 2 * Bytes(args.exp_avg) +
              2 * Bytes(args.exp_avg_sq) + Bytes(args.compute_copy) +
              Bytes(args.update.size > 0 ? args.update : args.master)};
}

Work WorkOf(absl::Span<const AdamWArgs> list) {
  Work work = {"adamw", 0, 0};
  for (const AdamWArgs& args : list) work.bytes += WorkOf(args).bytes;
  return work;
}

Work WorkOf(absl::Span<const TrustStepArgs> list) {
  Work work = {"trust step", 0, 0};
  for (const TrustStepArgs& args : list) work.bytes += 3 * Bytes(args.master);
  return work;
}

Work WorkOf(const CombineNormsArgs& args) { return {"combine norms", 0, Bytes(args.ranks)}; }

Work WorkOfAddColumnSums(const Matrix& x) { return {"column sums", 0, Bytes(x)}; }
Work WorkOfAdd(const Matrix& out) { return {"add", 0, Bytes(out) * 3}; }
Work WorkOfAddScaled(const Vector& x) { return {"add scaled", 0, Bytes(x) * 3}; }
Work WorkOfSumOfSquares(const Vector& x) { return {"sum of squares", 0, Bytes(x)}; }
Work WorkOfCast(const Vector& from, const Vector& to) {
  return {"cast", 0, Bytes(from) + Bytes(to)};
}
Work WorkOfFillZero(const Vector& x) { return {"fill zero", 0, Bytes(x)}; }

}  // namespace megascale::ops
