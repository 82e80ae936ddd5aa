// The vector kernels of the CPU implementation. Each works on a range of rows (or columns, or
// elements), so that threads can share an operator. They select the instruction set at run time.
// They do not check arguments; CpuOps does. Threads: a kernel writes only its own range (and
// `scratch`), so ranges may run in parallel.
#pragma once

#include <cstdint>

#include "runtime/ops/ops.h"

namespace megascale::ops::cpu {

// [begin, end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// Elementwise kernels: the name of the range tells whether it counts rows or elements.
void Add(const Matrix& a, const Matrix& b, const Matrix& out, Range rows);
void Activation(const ActivationArgs& args, Range rows);
void ActivationBackward(const ActivationBackwardArgs& args, Range rows);
void Cast(const Vector& from, const Vector& to, Range elements);
// Large buffers are written past the caches.
void FillZero(void* data, int64_t num_bytes);
void AddScaled(double factor, const Vector& x, const Vector& out, Range elements);
double SumOfSquares(const Vector& x, Range elements);
void AdamW(const AdamWArgs& args, Range elements);

// These take ranges of rows.
void Norm(const NormArgs& args, Range rows);
// Accumulates the gradients of weight and bias into args.d_weight and args.d_bias. Each thread must
// have its own d_weight and d_bias.
void NormBackward(const NormBackwardArgs& args, Range rows);
// Returns the floats of CrossEntropyScratch::powers: whole vectors of any width.
constexpr int64_t PowersSize(int64_t cols) { return (cols + 63) / 64 * 64; }
struct CrossEntropyScratch {
  double* row_losses = nullptr;  // [rows] receives -log softmax(logits[n])[targets[n]]
  float* powers = nullptr;       // [PowersSize(logits.cols)], each thread's own; backward only
};
void CrossEntropy(const CrossEntropyArgs& args, const CrossEntropyScratch& scratch, Range rows);
// The same with args.statistics. `row_losses` as in CrossEntropyScratch.
void CrossEntropyOfPart(const CrossEntropyArgs& args, double* row_losses, Range rows);
void LogitStatistics(const LogitStatisticsArgs& args, Range rows);
// Shapes: `cosines` and `sines` [seq, head_dim / 2].
void Rotary(const RotaryArgs& args, const float* cosines, const float* sines, Range rows);
void Embedding(const EmbeddingArgs& args, Range rows);

// For generation. FewRows takes a range of columns of c, runs no epilogue, and reads each element
// of b from memory once.
void FewRows(const MatMulArgs& args, Range cols);
// Copies all new keys and values into the cache.
void FillCache(const CachedAttentionArgs& args);
// `heads` counts (token, key/value head) pairs, key/value head fastest. Requires: FillCache before.
// `scratch` has CachedAttentionScratchSize(args) floats.
void CachedAttention(const CachedAttentionArgs& args, float* scratch, Range heads);
int64_t CachedAttentionScratchSize(const CachedAttentionArgs& args);

// These take ranges of columns; rows are added in an order that does not depend on the partition.
void EmbeddingBackward(const EmbeddingBackwardArgs& args, Range cols);
void AddColumnSums(const Matrix& x, const Vector& out, Range cols);
// Sets `to` [cols, rows] to the transpose of `from` [rows, cols], bf16, for the columns `cols` of
// `from`.
void Transpose(const Matrix& from, const Matrix& to, Range cols);

// A bf16 matrix in blocks of [block_pairs, block_cols, 2]: two rows are interleaved, as the
// processor's pair products need them. Strides in elements.
struct PairBlocks {
  uint16_t* data = nullptr;
  int64_t block_pairs = 0;
  int64_t block_cols = 0;
  int64_t row_block_stride = 0;
  int64_t col_block_stride = 0;
};
// Packs `from` into blocks; blocks that reach beyond `from` have zeros there. `row_blocks` counts
// blocks of 2 * block_pairs rows.
void Pack(const Matrix& from, const PairBlocks& to, Range row_blocks);

// These return the floats of scratch that one call needs.
int64_t AttentionScratchSize(const AttentionArgs& args);
int64_t AttentionBackwardScratchSize(const AttentionArgs& args);
// Returns the first key that the query at `position` sees, which never decreases with the position.
// Requires: the arguments belong to one sequence, as WithDocumentsOf returns them.
inline int64_t FirstKey(const AttentionArgs& args, int64_t position) {
  const int64_t in_window = args.window > 0 ? position - args.window + 1 : 0;
  const int64_t begin = args.document_begins ? args.document_begins.as<int32_t>()[position] : 0;
  return in_window > begin ? in_window : begin;
}
// Returns `args` with the document_begins of sequence `batch` alone.
inline AttentionArgs WithDocumentsOf(AttentionArgs args, int64_t batch) {
  if (!args.document_begins) return args;
  args.document_begins = {args.document_begins.as<int32_t>() + batch * args.seq, DType::kI32,
                          args.seq};
  return args;
}
// `groups` counts (batch, key/value head) pairs, key/value head fastest.
void Attention(const AttentionArgs& args, float* scratch, Range groups);
void AttentionBackward(const AttentionBackwardArgs& args, float* scratch, Range groups);

}  // namespace megascale::ops::cpu
