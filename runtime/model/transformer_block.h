// One transformer layer, forward and backward by hand, over memory that others planned. Internal
// to TransformerChunk.
//
// Legend of shape suffixes in this folder: N tokens of a micro-batch (batch * seq), C hidden size,
// H query heads, K key/value heads, D head size, A = H * D, Q = (H + 2K) * D the fused projection,
// I the MLP's inner width, U = I or 2I its input's, V vocabulary. F: the accumulation type.
#pragma once

#include <cstdint>

#include "runtime/model/config.h"
#include "runtime/ops/ops.h"
#include "runtime/tensor/tensor.h"

namespace megascale::model {

using tensor::Matrix;
using tensor::Vector;

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
  Matrix x_NC;    // what was normalised
  Matrix out_NC;  // compute
  Vector mean_N;  // F; LayerNorm only
  Vector rstd_N;  // F
};

// What a layer's forward keeps for its backward: one set per layer and micro-batch in flight.
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
  Matrix attention_out_NC;  // forward of parallel blocks
  Matrix d_inner_NI;        // backward, as the rest
  Matrix d_up_NU;
  Matrix d_norm_NC;
  Matrix d_attention_NA;
  Matrix d_qkv_NQ;
};

// The batch at hand; N = batch * seq may be less than what the memory was planned for.
struct BatchShape {
  int64_t batch = 0;
  int64_t seq = 0;
  int64_t tokens() const { return batch * seq; }
};

// The residual stream between layers: base + delta, added up by the next norm that reads it.
struct Residual {
  Matrix base_NC;
  Matrix delta_NC;  // none at a chunk's beginning
};

// The first `rows` rows.
Matrix Rows(const Matrix& matrix, int64_t rows);

class TransformerBlock {
 public:
  // `config` and `ops` must outlive the object.
  TransformerBlock(const ModelConfig* config, ops::Ops* ops) : config_(*config), ops_(*ops) {}

  // Runs a layer. `delta_NC` receives what it adds to the stream; it may be residual.delta_NC.
  Residual Forward(const BlockParameters& parameters, const BlockActivations& saved,
                   const BlockScratch& scratch, BatchShape shape, Residual residual,
                   const Matrix& delta_NC);

  // Turns `d_stream_NC`, the loss's gradient with respect to the layer's output, into that with
  // respect to its input, and adds to the parameters' gradients.
  void Backward(const BlockParameters& parameters, const BlockActivations& saved,
                const BlockScratch& scratch, BatchShape shape, const Matrix& d_stream_NC);

  // out = norm(base + delta). Returns the sum: saved.x_NC, or the base where there is no delta.
  Matrix Norm(const NormParameters& parameters, const NormActivations& saved, Residual residual);
  // Adds to d_stream_NC and to the parameters' gradients.
  void NormBackward(const NormParameters& parameters, const NormActivations& saved,
                    const Matrix& d_out_NC, const Matrix& d_stream_NC);
  void Linear(const LinearParameters& parameters, const Matrix& in, const Matrix& out);
  // Overwrites d_in, or adds to it, and adds to the parameters' gradients.
  void LinearBackward(const LinearParameters& parameters, const Matrix& in, const Matrix& d_out,
                      const Matrix& d_in, bool accumulate = false);

 private:
  struct Qkv {
    Matrix q, k, v, qk;  // columns of the fused matrix; qk: queries and keys together
  };
  Qkv Split(const Matrix& qkv_NQ) const;
  // The norm that the MLP reads.
  const NormActivations& MlpNorm(const BlockActivations& saved) const;
  ops::AttentionArgs AttentionArgsOf(const BlockActivations& saved, BatchShape shape) const;
  void Rotate(const Matrix& qk, BatchShape shape, bool inverse);
  void ForwardAttention(const BlockParameters& parameters, const BlockActivations& saved,
                        BatchShape shape, const Matrix& out_NC);
  void ForwardMlp(const BlockParameters& parameters, const BlockActivations& saved,
                  const Matrix& in_NC, const Matrix& out_NC);

  const ModelConfig& config_;
  ops::Ops& ops_;
};

}  // namespace megascale::model
