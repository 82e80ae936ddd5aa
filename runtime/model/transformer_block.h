// One transformer layer, with hand-written forward and backward. The caller provides all memory.
// Internal to TransformerChunk.
//
// Legend of shape suffixes in this folder: P tensor ranks, N tokens of a micro-batch (batch * seq),
// R this tensor rank's own rows (N / P of the N tokens), C hidden size, H query heads, K key/value
// heads, D head size, A = H * D, S = (H + K) * D, Q = (H + 2K) * D the fused projection, I the
// MLP's inner width, U = I or 2I the columns of the MLP's first product, V vocabulary. F: the
// accumulation type. H, K, A, S, Q, I, U and V are sizes of one tensor rank's part.
//
// If P tensor ranks share a layer, each normalises its own rows of the residual stream, gathers all
// ranks' rows of the result, and computes its heads and its part of the MLP's width for all N rows.
// The ranks' results are summed in pieces, and each rank gets its own rows of the sum
// (tensor_rows.h). Backward works in the same way: it gathers the gradients of own rows, and sums
// the gradients of the norms' outputs. Gathered rows are not kept. For the weight gradients they
// are gathered again. With P = 1 all rows are own rows, and nothing is gathered or summed.
//
//   gathers + sums                 forward   backward
//   parallel block, shared norm    1 + 1     1 + 1, and 1 for the weights
//   parallel block, two norms      2 + 1     1 + 2, and 2
//   serial block                   2 + 2     2 + 2, and 2
//
// A backward in two parts gathers the gradients once more, in BackwardWeights.
//
// Source: Korthikanti et al., 2022, section 4.2.2 (sequence parallelism with tensor parallelism).
#pragma once

#include <cstdint>

#include "runtime/model/config.h"
#include "runtime/model/tensor_rows.h"
#include "runtime/ops/ops.h"
#include "runtime/tensor/tensor.h"

namespace megascale::model {

// y = x weight^T + bias. Gradients are accumulated; d_weight and d_bias are empty if the model
// only evaluates.
struct LinearParameters {
  Matrix weight;    // [out, in] compute
  Vector bias;      // [out] compute, or empty
  Matrix d_weight;  // [out, in] F
  Vector d_bias;    // [out] F
};

struct NormParameters {
  Vector weight;    // [C] compute
  Vector bias;      // [C] compute, or empty
  Vector d_weight;  // [C] F
  Vector d_bias;    // [C] F
};

struct BlockParameters {
  int64_t window = 0;  // tokens that a query of this layer sees; 0: all tokens up to itself
  NormParameters input_norm;
  LinearParameters qkv;
  NormParameters q_norm, k_norm;  // weight [D]; empty without qk_norm
  LinearParameters attention_out;
  NormParameters post_attention_norm;  // the MLP's norm; empty if it shares input_norm
  LinearParameters up;
  LinearParameters down;
};

// The data that a norm's forward keeps for its backward.
struct NormActivations {
  Matrix x_RC;    // input of the norm
  Matrix out_RC;  // compute
  Vector mean_R;  // F; LayerNorm only
  Vector rstd_R;  // F
};

// Activations that the backward pass recomputes instead of reading from memory. The memory of
// recomputed activations is shared by all layers and micro-batches. Gradients have the same bits,
// because the same kernels run on the same inputs. The table has the elements kept per token and
// layer of a serial block, and the operations that are repeated:
//
//   kNone       4C + Q + A + U + I; 16C in GPT-3    nothing
//   kSelective  2C + Q + A + U; 10C                 norms and activation function, no products
//   kFull       C                                   the forward except for its last product
//
// With qk_norm, kNone and kSelective also keep the norms of queries and keys: S more. Statistics,
// in F, are kept in addition: up to 4 + H numbers with kNone, H with kSelective (H + K more each
// with qk_norm), 0 with kFull. kSelective stops where recomputation costs more than the memory it
// saves: an element that it keeps would take a sum over C products, or over a sequence, to
// recompute. kFull keeps only the layer's input. Without attention, and with the sizes of GPT-3, a
// layer takes 72C^2 FLOPs per token; kFull adds 16C^2, and attention's forward once more.
//
// Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022:
// keep activations that are small or expensive to recompute. The largest activations in that paper
// are attention's scores, which Ops never keeps.
enum class Recompute : uint8_t { kNone, kSelective, kFull };

// Activations that a layer's forward keeps for its backward: one set per layer and micro-batch in
// flight. Activations that are recomputed are in memory that all layers share.
//
// A backward in two parts needs no extra memory. For each linear layer, BackwardWeights multiplies
// the input, which is kept anyway, by the gradient of the output. BackwardInput stores that
// gradient in place of an activation that is not read again: d_qkv in qkv_NQ, d_up in up_NU, and in
// a serial block the gradient of attention_out's output in post_attention_norm.x_RC. The caller
// keeps the gradient of the layer's output, for which it can use input_norm.x_RC.
struct BlockActivations {
  NormActivations input_norm;
  Matrix qkv_NQ;       // without qk_norm: queries and keys already rotated
  Matrix qk_NS;        // with qk_norm: queries and keys, normalised and rotated
  Vector qk_rstd_HKN;  // F, by head; with qk_norm
  Matrix attention_NA;
  Vector log_sum_exp_BHT;               // F
  NormActivations post_attention_norm;  // in a parallel block its x_RC is input_norm.x_RC
  Matrix up_NU;
  Matrix inner_NI;  // after the activation
  // [sequences * capacity, K * D]; generation only: see ops::CachedAttentionArgs
  Matrix cached_k, cached_v;
};

// Temporary memory of a layer, shared by all layers and micro-batches.
struct BlockScratch {
  // Several tensor ranks only.
  Matrix gathered_NC;    // a norm's output
  Matrix d_gathered_NC;  // the gathered gradient of the layer's, or attention_out's, output
  Matrix partial_NC;     // a partial result to be summed over the ranks

  Matrix attention_out_NC;  // forward of parallel blocks
  Matrix d_inner_NI;        // this and the following: backward
  Matrix d_up_NU;
  Matrix d_norm_RC;
  Matrix d_attention_NA;
  Matrix d_qkv_NQ;
  Matrix d_qk_NS;  // with qk_norm
};

// The shape of a batch; N = batch * seq may be less than the memory was planned for.
struct BatchShape {
  int64_t batch = 0;
  int64_t seq = 0;
  // For generation: for each of the N = seq tokens, its place in the cache. The tokens may belong
  // to several sequences.
  Vector places_N = {};  // I32; see ops::CachedAttentionArgs
  int64_t capacity = 0;  // of the cache, for each sequence
  // Where each token's document begins; empty: attention reaches over documents.
  Vector document_begins_N = {};                  // I32; see ops::AttentionArgs
  int64_t tokens() const { return batch * seq; }  // N
};

// The residual stream between layers, base + delta. The next norm that reads it does the addition.
struct Residual {
  Matrix base_RC;
  Matrix delta_RC;  // empty at a chunk's beginning
};

class TransformerBlock {
 public:
  // `config` is this tensor rank's part. `config` and `ops` must outlive the object. `generates`:
  // linear layers of few rows are computed row by row (ops::MatMulArgs::few_rows).
  TransformerBlock(const ModelConfig* config, ops::Ops* ops, TensorRows rows, bool generates)
      : config_(*config), ops_(*ops), rows_(rows), generates_(generates) {}

  // Runs a layer. `delta_RC` receives its addition to the stream; it may be residual.delta_RC.
  Residual Forward(const BlockParameters& parameters, const BlockActivations& saved,
                   const BlockScratch& scratch, BatchShape shape, Residual residual,
                   const Matrix& delta_RC);

  // Recomputes the activations that are not kept with `what`. Requires: the other activations, at
  // least input_norm.x_RC, are as the layer's forward left them. Overwrites `delta_RC`.
  void ForwardAgain(Recompute what, const BlockParameters& parameters,
                    const BlockActivations& saved, const BlockScratch& scratch, BatchShape shape,
                    const Matrix& delta_RC);

  // Replaces the loss's gradient with respect to the layer's output, in `d_stream_RC`, by the
  // gradient with respect to the layer's input, and accumulates the parameters' gradients.
  void Backward(const BlockParameters& parameters, const BlockActivations& saved,
                const BlockScratch& scratch, BatchShape shape, const Matrix& d_stream_RC);

  // Does the same as Backward, but leaves the gradients of the linear layers' weights to
  // BackwardWeights. Effects: swaps buffers of the same shape between `saved` and `scratch`.
  // input_norm.x_RC is not read afterwards.
  void BackwardInput(const BlockParameters& parameters, BatchShape shape, BlockActivations* saved,
                     BlockScratch* scratch, const Matrix& d_stream_RC);
  // Adds the weight gradients that BackwardInput left out: at any time after it, in any order of
  // layers and micro-batches. `d_output_RC` is the d_stream that BackwardInput was given. The
  // products are the same as in Backward. If they are added in the same order of micro-batches, the
  // gradients have the same bits.
  void BackwardWeights(const BlockParameters& parameters, const BlockActivations& saved,
                       const BlockScratch& scratch, const Matrix& d_output_RC);

  // Computes out = norm(base + delta). Returns the sum: saved.x_RC, or the base if there is no
  // delta.
  Matrix Norm(const NormParameters& parameters, const NormActivations& saved, Residual residual);
  // Accumulates into d_stream_RC and the parameters' gradients.
  void NormBackward(const NormParameters& parameters, const NormActivations& saved,
                    const Matrix& d_out_RC, const Matrix& d_stream_RC);
  void Linear(const LinearParameters& parameters, const Matrix& in, const Matrix& out);
  // The same piece by piece, as rows arrive.
  void Linear(const LinearParameters& parameters, const GatheredRows& in, const Matrix& out);
  // Overwrites d_in, or accumulates into it.
  void InputGradient(const LinearParameters& parameters, const Matrix& d_out, const Matrix& d_in,
                     bool accumulate = false);
  // Accumulates the weight's gradient, if the layer has one.
  void AddWeightGradient(const LinearParameters& parameters, const Matrix& in, const Matrix& d_out);

 private:
  struct Qkv {
    Matrix q, k, v, qk;  // columns of the fused matrix; qk: queries and keys together
  };
  Qkv Split(const Matrix& qkv_NQ) const;
  // Returns the queries, keys and values that attention reads: the columns of qkv_NQ, but with
  // qk_norm queries and keys are in qk_NS. Given d_qkv_NQ and d_qk_NS, returns in the same way the
  // gradients that attention's backward writes.
  Qkv OfAttention(const Matrix& qkv_NQ, const Matrix& qk_NS) const;
  Qkv QkvOf(const BlockActivations& saved, int64_t tokens) const;
  // Normalises each head of queries and keys from qkv_NQ into qk_NS. Only with qk_norm.
  void NormHeads(const BlockParameters& parameters, const BlockActivations& saved,
                 BatchShape shape);
  // Adds the gradients of queries and keys from d_qk_NS to d_qkv_NQ. Only with qk_norm.
  void NormHeadsBackward(const BlockParameters& parameters, const BlockActivations& saved,
                         const BlockScratch& scratch);
  // Returns the norm that the MLP reads.
  const NormActivations& MlpNorm(const BlockActivations& saved) const;
  ops::AttentionArgs AttentionArgsOf(const BlockParameters& parameters,
                                     const BlockActivations& saved, BatchShape shape) const;
  ops::CachedAttentionArgs CachedAttentionArgsOf(const BlockParameters& parameters,
                                                 const BlockActivations& saved,
                                                 BatchShape shape) const;
  void Rotate(const Matrix& qk, BatchShape shape, bool inverse);
  // Runs the projection to queries, keys and values, then attention; returns attention's output.
  Matrix Attend(const BlockParameters& parameters, const BlockActivations& saved,
                const GatheredRows& norm, BatchShape shape);
  // Runs the MLP except for its last product; returns the input of that product.
  Matrix ExpandAndActivate(const BlockParameters& parameters, const BlockActivations& saved,
                           const GatheredRows& norm);
  // Runs a linear layer and sums its result over the ranks; out_RC receives this rank's own rows.
  void LinearAddUp(const LinearParameters& parameters, const Matrix& in, const Matrix& partial_NC,
                   const Matrix& out_RC);
  // Gathers the input of the layer `linear` if the layer has a weight gradient.
  GatheredRows GatherForWeights(const LinearParameters& linear, const NormActivations& norm,
                                const BlockScratch& scratch);
  // Runs the MLP's backward. d_norm_RC receives the gradient with respect to the output of the
  // MLP's norm. If attention shares that norm, scratch.partial_NC (d_norm_RC if there is one tensor
  // rank) receives this rank's partial gradient of all rows instead. A serial block also runs the
  // norm's backward, into d_stream_RC.
  void BackwardMlp(const BlockParameters& parameters, const BlockActivations& saved,
                   const BlockScratch& scratch, const Matrix& d_stream_RC);
  // Runs the backward of attention and of the remaining norms. Requires: BackwardMlp ran before.
  void BackwardAttention(const BlockParameters& parameters, const BlockActivations& saved,
                         const BlockScratch& scratch, BatchShape shape, const Matrix& d_stream_RC);
  void InputGradient(const LinearParameters& parameters, const GatheredRows& d_out,
                     const Matrix& d_in);
  // Computes the gradient of the activation's input, d_up_NU, from the gradient of the MLP's
  // output.
  void ActivationInputGradient(const LinearParameters& parameters, const GatheredRows& d_out,
                               const BlockActivations& saved, const BlockScratch& scratch);
  void AddBiasGradient(const LinearParameters& parameters, const Matrix& d_out);
  // Accumulates the gradients of the bias and, if the layer has one, of the weight.
  void AddGradients(const LinearParameters& parameters, const GatheredRows& in,
                    const Matrix& d_out);

  const ModelConfig& config_;
  ops::Ops& ops_;
  TensorRows rows_;
  const bool generates_;
};

}  // namespace megascale::model
