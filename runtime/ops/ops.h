// The operators of a transformer, forward and backward, with one implementation per device family.
// All implementations pass ops_conformance_test.cc and product_conformance_test.cc.
//
// Stream order: calls on one Ops object take effect in the order in which they are made. Another
// stream sees their results after it has waited for an event that was recorded after them. The CPU
// implementations compute inside the call.
//
// Threads: one Ops object belongs to one stream's thread.
//
// Errors: shapes and dtypes that do not fit are bugs (CHECK).
//
// Memory: all tensors, results included, lie in the device's memory; the numbers that the host
// needs are copied to the host once a step. A list of arguments lies in host memory and must not
// change until the work that reads it has ended.
//
// Determinism: the same inputs, thread count and processor give the same bits, whatever else the
// machine does.
//
// Dtypes: `compute` is F64, F32 or BF16 for activations and weights; gradients of weights,
// statistics and losses are in AccumulationType(compute), written F below.
//
// Legend: B batch, T sequence, N = B*T tokens, C hidden size, H query heads, K key/value heads, D
// head size, V vocabulary, I intermediate size.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/product.h"
#include "runtime/ops/step_numbers.h"
#include "runtime/tensor/tensor.h"

namespace megascale::ops {

using tensor::DType;

enum class NormKind : uint8_t { kLayerNorm, kRmsNorm };

// Computes out = norm(in) * weight + bias, where in = x. With a delta, in = x + delta, and `sum`
// receives x + delta.
struct NormArgs {
  NormKind kind = NormKind::kLayerNorm;
  double eps = 1e-5;
  Matrix x;       // [N, C]
  Matrix delta;   // [N, C], or empty
  Matrix sum;     // [N, C] out, when there is a delta
  Vector weight;  // [C] compute
  Vector bias;    // [C] compute, or empty (RMSNorm has no bias)
  Matrix out;     // [N, C]
  Vector mean;    // [N] F out (LayerNorm only)
  Vector rstd;    // [N] F out
};

struct NormBackwardArgs {
  NormKind kind = NormKind::kLayerNorm;
  Matrix x;         // [N, C]: input of the norm (`sum` if there was a delta)
  Vector weight;    // [C]
  Vector mean;      // [N]
  Vector rstd;      // [N]
  Matrix d_out;     // [N, C]
  Matrix d_x;       // [N, C]: ACCUMULATED into (it holds the gradient of the residual path)
  Vector d_weight;  // [C] F: accumulated into
  Vector d_bias;    // [C] F: accumulated into, or empty
};

// How rotary frequencies are scaled, for contexts longer than those of pre-training. Of the R
// elements of a head that are turned (RotaryArgs), pair i has the frequency f = theta^(-2i/R). The
// scaled frequency is f * (kept + (1 - kept) / factor), where
//
//   kept = clamp(kept_at_0 + kept_per_pair * i + kept_per_frequency * f, 0, 1).
//
// Linear scaling has kept = 0. With Llama 3, `kept` grows with the frequency; with YaRN, it is
// greater for earlier pairs. YaRN also multiplies each turned pair by `amplitude`.
struct RotaryScaling {
  double factor = 1;  // 1: no scaling; the three numbers below do not matter
  double kept_at_0 = 0, kept_per_pair = 0, kept_per_frequency = 0;
  double amplitude = 1;

  bool operator==(const RotaryScaling&) const = default;
};

// Rotary position embedding, in place, of the first R elements of each head. Uses the halves
// convention of Hugging Face's Llama (pairs (i, i + R/2)). Row n has the position n mod T, or
// places[n] mod T. `inverse` turns in the other direction, with the same amplitude, for the
// backward pass.
struct RotaryArgs {
  int64_t seq = 0, heads = 0, head_dim = 0;
  int64_t rotary_dim = 0;  // R, even; 0: head_dim
  double theta = 10000;
  RotaryScaling scaling = {};
  Matrix x;  // [N, heads*D]
  bool inverse = false;
  Vector places = {};  // [N] I32, as in CachedAttentionArgs; or empty

  int64_t turned() const { return rotary_dim == 0 ? head_dim : rotary_dim; }
  // Returns the scaled frequency of pair `pair`, in radians per position.
  double Frequency(int64_t pair) const;
};

// GELU: out [N, I] = gelu(in [N, I]). SwiGLU: in [N, 2I] holds gate then up; out [N, I] =
// silu(gate) * up.
struct ActivationArgs {
  ActivationKind kind = ActivationKind::kGeluTanh;
  Matrix in;
  Matrix out;
};
struct ActivationBackwardArgs {
  ActivationKind kind = ActivationKind::kGeluTanh;
  Matrix in;
  Matrix d_out;  // [N, I]
  Matrix d_in;   // like in: overwritten; shares no memory with the others
};

// The tokens to which the rows of an embedding, or the columns of logits, belong.
struct VocabularyPart {
  int64_t first_token = 0;  // token of the first row or column
  int64_t vocab_size = 0;   // all tokens are below it; 0: the part is the whole vocabulary
};

// Computes out[n] = token_weight[tokens[n]] (+ position_weight[n mod seq], or with `places`
// position_weight[places[n] mod seq]). With document_begins, positions count from the beginning of
// the document: n mod seq - document_begins[n]. A token outside of the part in token_weight adds
// zeros, so the sum of the parts' outputs is the output of the whole vocabulary if one part alone
// has position_weight.
struct EmbeddingArgs {
  int64_t seq = 0;
  Vector tokens;           // [N] I32
  Matrix token_weight;     // [V, C]
  Matrix position_weight;  // [T max, C], or empty
  Matrix out;              // [N, C]
  VocabularyPart vocabulary = {};
  Vector places = {};           // [N] I32, as in CachedAttentionArgs; or empty
  Vector document_begins = {};  // [N] I32, as in AttentionArgs; or empty; not with `places`
};
// Accumulates the gradients in token order, so that they are deterministic. Tokens outside of the
// part add to the gradients of positions only.
struct EmbeddingBackwardArgs {
  int64_t seq = 0;
  Vector tokens;
  Matrix d_out;              // [N, C]
  Matrix d_token_weight;     // [V, C] F
  Matrix d_position_weight;  // [T max, C] F, or empty
  VocabularyPart vocabulary = {};
  Vector document_begins = {};  // as in forward
};

// In one pass: loss_sum[0] += -sum_n log softmax(logits[n])[targets[n]]. With `backward`,
// overwrites the logits with (softmax - one_hot) * gradient_scale; else leaves them unchanged.
struct CrossEntropyArgs {
  Matrix logits;   // [N, V] compute
  Vector targets;  // [N] I32
  double gradient_scale = 1.0;
  bool backward = true;
  Vector loss_sum = {};  // [1] F64: added to, in row order

  // For a vocabulary cut into P parts, each on one rank: the part that `logits` has, and the
  // results of LogitStatistics of all parts, one after the other. Targets and the loss refer to the
  // whole vocabulary; gradients are written for the part's columns only.
  VocabularyPart vocabulary = {};
  Vector statistics = {};  // [P, 3, N] F; empty: `logits` is the whole vocabulary
};

// For each row of logits: the statistics of one part of the vocabulary, which the ranks with the
// other parts need. Source: Shoeybi et al., Megatron-LM, 2019, section 3.
struct LogitStatisticsArgs {
  Matrix logits;   // [N, V / P] compute
  Vector targets;  // [N] I32, of the whole vocabulary
  VocabularyPart vocabulary = {};
  // [3, N] F out: the greatest logit; the sum of exp(logit - greatest); the target's logit, or 0 if
  // the target is not in this part.
  Vector statistics;
};

// AdamW for a contiguous range, with decoupled decay: master -= lr * u, where u = m / (sqrt(v) +
// eps) + weight_decay * master, and m and v are the bias-corrected moments. If `update` is set, it
// receives u and master does not change, because LAMB has to scale u first. Learning rate, step and
// clipping factor come from `step_numbers`. If its kIsFinite is 0, nothing changes. Sources:
// Loshchilov and Hutter, 2019, algorithm 2; You et al., 2020, algorithm 2.
struct AdamWArgs {
  Vector master;             // F: updated
  Vector exp_avg;            // F: updated
  Vector exp_avg_sq;         // F: updated
  Vector grad;               // F
  Vector compute_copy;       // compute: the new master, rounded; or empty; not with `update`
  Vector update = {};        // F, may be `grad`; or empty. With it lr is unused
  Vector step_numbers = {};  // [kNumStepNumbers] F64
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
};

// The second part of LAMB's step for a contiguous range of one tensor, after AdamW with `update`:
// master -= lr * ratio * update; nothing if the step's numbers are not finite. The ratio is the
// norm of the whole tensor's weights divided by the norm of its update, or 1 if either norm is 0.
// Source: You et al., 2020, algorithm 2.
struct TrustStepArgs {
  Vector master;  // F: updated
  Vector update;  // F
  // [num_parts, sums of a part] F64: row i has the sums of squares over part i of the optimizer
  // state. Column `first_sum` is for the tensor's weights, the next one for its update. Rows are
  // added as a tree (runtime/tensor/sum_tree.h).
  Vector trust_sums;
  int64_t num_parts = 1;
  int64_t first_sum = 0;
  Vector step_numbers = {};  // [kNumStepNumbers] F64
};

// Adds up the numbers that each rank of a group contributes (step_numbers.h), as a tree
// (runtime/tensor/sum_tree.h); one rank that asks for a stop is enough. Writes the sums, or makes
// the step's numbers from them.
struct CombineNormsArgs {
  Vector ranks;          // [P, kNumRankNumbers] F64
  Vector sums = {};      // [kNumRankNumbers] F64: what the group contributes to a larger one
  double clip_grad = 0;  // the largest permitted norm of the gradient; 0: no clipping
  // [kNumStepNumbers] F64: all but the learning rate and the step are written. Empty where `sums`
  // is not.
  Vector step_numbers = {};
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual DType compute() const = 0;

  virtual void MatMul(const MatMulArgs& args) = 0;
  virtual void Norm(const NormArgs& args) = 0;
  virtual void NormBackward(const NormBackwardArgs& args) = 0;
  virtual void Attention(const AttentionArgs& args) = 0;
  virtual void AttentionBackward(const AttentionBackwardArgs& args) = 0;
  // For generation. The default ends the program; implementations that only train do not override
  // it.
  virtual void CachedAttention(const CachedAttentionArgs& args);
  virtual void Rotary(const RotaryArgs& args) = 0;
  virtual void Activation(const ActivationArgs& args) = 0;
  virtual void ActivationBackward(const ActivationBackwardArgs& args) = 0;
  virtual void Embedding(const EmbeddingArgs& args) = 0;
  virtual void EmbeddingBackward(const EmbeddingBackwardArgs& args) = 0;
  virtual void LogitStatistics(const LogitStatisticsArgs& args) = 0;
  virtual void CrossEntropy(const CrossEntropyArgs& args) = 0;
  // AdamW and TrustStep process all entries of a list, in any order. Requires: the entries' ranges
  // do not overlap.
  virtual void AdamW(absl::Span<const AdamWArgs> list) = 0;
  virtual void TrustStep(absl::Span<const TrustStepArgs> list) = 0;
  virtual void CombineNorms(const CombineNormsArgs& args) = 0;

  // out [C] F += column sums of x [N, C]: the gradient of a bias. The order of additions follows
  // from the shape alone.
  virtual void AddColumnSums(const Matrix& x, const Vector& out) = 0;
  // out = a + b, elementwise, compute. `out` may be `a` or `b`.
  virtual void Add(const Matrix& a, const Matrix& b, const Matrix& out) = 0;
  // out F += factor * x F, elementwise.
  virtual void AddScaled(double factor, const Vector& x, const Vector& out) = 0;
  // out [1] F64 += the sum of squares of x F in fp64, added in an order that follows from the size
  // alone, whatever the number of threads.
  virtual void AddSumOfSquares(const Vector& x, const Vector& out) = 0;
  // out [1] F64 += each element of x F64, one after the other.
  virtual void AddTotal(const Vector& x, const Vector& out) = 0;
  // out [1] F64 = the first element of x, in row-major order, that is not finite; 0 if all elements
  // are finite. x is compute, F or F64.
  virtual void FirstNotFinite(const Matrix& x, const Vector& out) = 0;
  // Converts between dtypes, rounding to nearest even.
  virtual void Cast(const Vector& from, const Vector& to) = 0;
  virtual void FillZero(const Vector& x) = 0;
};

// Makes the fast CPU implementation: oneDNN for products, Highway for the rest. `compute` is kF32
// or kBF16. The number of threads is fixed for the object's life and is part of the numerics. With
// 1 no thread is started. Otherwise OpenMP starts them, and they spin while idle unless the process
// was started with base::ThreadEnvironment. After the first call with each shape, only oneDNN
// allocates memory, within products.
std::unique_ptr<Ops> MakeCpuOps(DType compute, int num_threads);

// The calls that determine the memory of the object that MakeCpuOps returns; their data may be
// null.
struct KernelShapes {
  std::vector<MatMulArgs> products;
  AttentionArgs attention;
  int64_t logits_cols = 0;  // of CrossEntropy; 0: it is not called
};
// Estimates how many bytes of memory an object of MakeCpuOps needs at most for these calls:
// rearranged operands, temporary rows, and oneDNN's memory for packing. Leaves out some MiB that
// oneDNN takes for other purposes, and small tables.
int64_t CpuKernelBytes(const KernelShapes& shapes, int num_threads);

// Makes the reference, with which all other implementations are compared: plain loops in float64
// (compute is kF64).
std::unique_ptr<Ops> MakeReferenceOps();

// Returns "avx2", "avx512", "avx512_bf16" or "amx_bf16", the best instruction set of this processor
// for products, or "baseline" for an older one. It is part of the numerics.
const char* InstructionSet();

// Measures the best rate of matrix products on `num_threads` threads, in FLOP/s. For about
// `seconds` it multiplies square matrices of 1,024 rows (F64: 128), with and without transposing
// `b`; the fastest call counts. Model FLOPs utilisation is relative to this rate.
double MeasureMatMulCeiling(DType compute, int num_threads, double seconds);

}  // namespace megascale::ops
