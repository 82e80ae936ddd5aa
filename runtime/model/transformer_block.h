// One transformer layer, forward and backward by hand, over memory that others planned. Internal
// to TransformerChunk.
//
// Legend of shape suffixes in this folder: N tokens of a micro-batch (batch * seq), R this tensor
// rank's own rows of them (N / t), C hidden size, H query heads, K key/value heads, D head size, A
// = H * D, Q = (H + 2K) * D the fused projection, I the MLP's inner width, U = I or 2I its input's,
// V vocabulary, P tensor ranks. F: the accumulation type. H, K, A, Q, I, U and V are a tensor
// rank's parts.
//
// Where t tensor ranks share a layer, each norms its own rows of the residual stream, gathers all
// ranks' rows of the result, computes its heads and its part of the MLP's width for all N rows, and
// gets its own rows of the ranks' sum back, all of it in pieces (tensor_rows.h). Backward goes the
// same way: gradients of its own rows are gathered, those of the norms' outputs are added up. What
// was gathered is not kept: weights' gradients gather it again. With t = 1 all rows are its own,
// and nothing is gathered or added up.
//
//   gathers + sums                 forward   backward
//   parallel block, shared norm    1 + 1     1 + 1, and 1 for the weights
//   parallel block, two norms      2 + 1     1 + 2, and 2
//   serial block                   2 + 2     2 + 2, and 2
//
// Source: Korthikanti et al., 2022, section 4.2.2 (sequence parallelism with tensor parallelism).
#pragma once

#include <cstdint>

#include "runtime/model/config.h"
#include "runtime/model/tensor_rows.h"
#include "runtime/ops/ops.h"
#include "runtime/tensor/tensor.h"

namespace megascale::model {

// y = x weight^T + bias. Gradients are added to; none where only evaluation is wanted.
struct LinearParameters {
  Matrix weight;    // [out, in] compute
  Vector bias;      // [out] compute, or none
  Matrix d_weight;  // [out, in] F
  Vector d_bias;    // [out] F
};

struct NormParameters {
  Vector weight;    // [C] compute
  Vector bias;      // [C] compute, or none
  Vector d_weight;  // [C] F
  Vector d_bias;    // [C] F
};

struct BlockParameters {
  NormParameters input_norm;
  LinearParameters qkv;
  LinearParameters attention_out;
  NormParameters post_attention_norm;  // the MLP's; none where it shares input_norm
  LinearParameters up;
  LinearParameters down;
};

// What a norm's forward keeps for its backward.
struct NormActivations {
  Matrix x_RC;    // what was normalised
  Matrix out_RC;  // compute
  Vector mean_R;  // F; LayerNorm only
  Vector rstd_R;  // F
};

// What a layer's forward does not keep for its backward, which does it again into memory that all
// layers and micro-batches share. Gradients have the same bits: the same kernels on the same
// inputs. Kept per token and layer of a serial block, in elements, and what is done again:
//
//   kNone       4C + Q + A + U + I; 16C in GPT-3    nothing
//   kSelective  2C + Q + A + U; 10C                 norms and activation function: no products
//   kFull       C                                   the forward but for its last product
//
// Statistics are in F and come on top: up to 4 + H numbers, H, and none. kSelective ends where
// bytes get dear: what it keeps takes 2C FLOPs per element or more to make again, whichever it is.
// All of it is kFull's, which adds 16C^2 FLOPs per token and layer, and attention, to 72C^2.
//
// Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022:
// keep what is small or dear, do the rest again. What they found largest there, attention's scores,
// Ops never keeps.
enum class Recompute : uint8_t { kNone, kSelective, kFull };

// What a layer's forward keeps for its backward: one set per layer and micro-batch in flight, but
// for what is recomputed.
//
// A backward in two parts needs no byte more. BackwardWeights multiplies what went into each linear
// layer, which is here anyway, by the gradient of what came out of it, and BackwardInput leaves
// that in place of an activation that nothing reads after it: d_qkv for qkv_NQ, d_up for up_NU, and
// in a serial block the gradient of attention's output for post_attention_norm.x_RC. The gradient
// of the layer's output is for the caller to keep, who has input_norm.x_RC for it.
struct BlockActivations {
  NormActivations input_norm;
  Matrix qkv_NQ;  // queries and keys already rotated
  Matrix attention_NA;
  Vector log_sum_exp_BHT;               // F
  NormActivations post_attention_norm;  // in a parallel block it reads what input_norm reads
  Matrix up_NU;
  Matrix inner_NI;  // after the activation
};

// Memory that a layer uses and leaves: shared by all layers and micro-batches.
struct BlockScratch {
  // Several tensor ranks only.
  Matrix gathered_NC;    // a norm's output
  Matrix d_gathered_NC;  // the gradient of the layer's, or attention's, output
  Matrix partial_NC;     // what is added up over the ranks

  Matrix attention_out_NC;  // forward of parallel blocks
  Matrix d_inner_NI;        // backward, as the rest
  Matrix d_up_NU;
  Matrix d_norm_RC;
  Matrix d_attention_NA;
  Matrix d_qkv_NQ;
};

// The batch at hand; N = batch * seq may be less than what the memory was planned for.
struct BatchShape {
  int64_t batch = 0;
  int64_t seq = 0;
  int64_t tokens() const { return batch * seq; }  // N
};

// The residual stream between layers: base + delta, added up by the next norm that reads it.
struct Residual {
  Matrix base_RC;
  Matrix delta_RC;  // none at a chunk's beginning
};

class TransformerBlock {
 public:
  // `config`, this tensor rank's part, and `ops` must outlive the object.
  TransformerBlock(const ModelConfig* config, ops::Ops* ops, TensorRows rows)
      : config_(*config), ops_(*ops), rows_(rows) {}

  // Runs a layer. `delta_RC` receives what it adds to the stream; it may be residual.delta_RC.
  Residual Forward(const BlockParameters& parameters, const BlockActivations& saved,
                   const BlockScratch& scratch, BatchShape shape, Residual residual,
                   const Matrix& delta_RC);

  // Fills again what `what` says was not kept; the rest, at least input_norm.x_RC, is as the
  // layer's forward left it. `delta_RC` is overwritten.
  void ForwardAgain(Recompute what, const BlockParameters& parameters,
                    const BlockActivations& saved, const BlockScratch& scratch, BatchShape shape,
                    const Matrix& delta_RC);

  // Turns `d_stream_RC`, the loss's gradient with respect to the layer's output, into that with
  // respect to its input, and adds to the parameters' gradients.
  void Backward(const BlockParameters& parameters, const BlockActivations& saved,
                const BlockScratch& scratch, BatchShape shape, const Matrix& d_stream_RC);

  // Backward but for the gradients of the linear layers' weights, which BackwardWeights adds.
  // Effects: exchanges buffers of the same shape between `saved` and `scratch`. Nothing reads
  // input_norm.x_RC after it.
  void BackwardInput(const BlockParameters& parameters, BatchShape shape, BlockActivations* saved,
                     BlockScratch* scratch, const Matrix& d_stream_RC);
  // Adds the matrix products that BackwardInput left out: at any time after it, in any order of
  // layers and micro-batches. `d_output_RC` is the d_stream that BackwardInput was given. The same
  // products as Backward's: added in the same order of micro-batches they give the same bits.
  void BackwardWeights(const BlockParameters& parameters, const BlockActivations& saved,
                       const BlockScratch& scratch, const Matrix& d_output_RC);

  // out = norm(base + delta). Returns the sum: saved.x_RC, or the base where there is no delta.
  Matrix Norm(const NormParameters& parameters, const NormActivations& saved, Residual residual);
  // Adds to d_stream_RC and to the parameters' gradients.
  void NormBackward(const NormParameters& parameters, const NormActivations& saved,
                    const Matrix& d_out_RC, const Matrix& d_stream_RC);
  void Linear(const LinearParameters& parameters, const Matrix& in, const Matrix& out);
  // Piece by piece, as rows come.
  void Linear(const LinearParameters& parameters, const GatheredRows& in, const Matrix& out);
  // Overwrites d_in, or adds to it.
  void InputGradient(const LinearParameters& parameters, const Matrix& d_out, const Matrix& d_in,
                     bool accumulate = false);
  // Adds to the weight's gradient, where there is one.
  void AddWeightGradient(const LinearParameters& parameters, const Matrix& in, const Matrix& d_out);

 private:
  struct Qkv {
    Matrix q, k, v, qk;  // columns of the fused matrix; qk: queries and keys together
  };
  Qkv Split(const Matrix& qkv_NQ) const;
  // The norm that the MLP reads.
  const NormActivations& MlpNorm(const BlockActivations& saved) const;
  ops::AttentionArgs AttentionArgsOf(const BlockActivations& saved, BatchShape shape) const;
  void Rotate(const Matrix& qk, BatchShape shape, bool inverse);
  // The projection to queries, keys and values, and attention itself, which is returned.
  Matrix Attend(const BlockParameters& parameters, const BlockActivations& saved,
                const GatheredRows& norm, BatchShape shape);
  // The MLP but for its last product, whose input is returned.
  Matrix ExpandAndActivate(const BlockParameters& parameters, const BlockActivations& saved,
                           const GatheredRows& norm);
  // out_RC = own rows of the ranks' sum.
  void LinearAddUp(const LinearParameters& parameters, const Matrix& in, const Matrix& partial_NC,
                   const Matrix& out_RC);
  // What went into the layer `linear`, if its weight's gradient is wanted.
  GatheredRows GatherForWeights(const LinearParameters& linear, const NormActivations& norm,
                                const BlockScratch& scratch);
  // d_norm_RC receives the gradient with respect to the MLP's norm's output. Where the norm is
  // shared, that of all rows receives what the MLP and this rank add to it. A serial block's goes
  // on through the norm into d_stream_RC.
  void BackwardMlp(const BlockParameters& parameters, const BlockActivations& saved,
                   const BlockScratch& scratch, const Matrix& d_stream_RC);
  // Attention and what is left of the norms. Requires: BackwardMlp before.
  void BackwardAttention(const BlockParameters& parameters, const BlockActivations& saved,
                         const BlockScratch& scratch, BatchShape shape, const Matrix& d_stream_RC);
  void InputGradient(const LinearParameters& parameters, const GatheredRows& d_out,
                     const Matrix& d_in);
  void AddBiasGradient(const LinearParameters& parameters, const Matrix& d_out);
  void AddWeightGradient(const LinearParameters& parameters, const GatheredRows& in,
                         const Matrix& d_out);

  const ModelConfig& config_;
  ops::Ops& ops_;
  TensorRows rows_;
};

}  // namespace megascale::model
