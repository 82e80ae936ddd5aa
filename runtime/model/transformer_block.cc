#include "runtime/model/transformer_block.h"

#include "runtime/base/check.h"
#include "runtime/tensor/tensor.h"

namespace megascale::model {
namespace {

using ops::Transpose;

Matrix Columns(const Matrix& matrix, int64_t begin, int64_t count) {
  Matrix columns = matrix;
  columns.data =
      static_cast<char*>(matrix.data) + begin * static_cast<int64_t>(SizeOf(matrix.dtype));
  columns.cols = count;
  return columns;
}

Vector First(const Vector& vector, int64_t count) {
  Vector first = vector;
  first.size = count;
  return first;
}

}  // namespace

Matrix Rows(const Matrix& matrix, int64_t rows) {
  MEGASCALE_CHECK(rows <= matrix.rows);
  Matrix view = matrix;
  view.rows = rows;
  return view;
}

Residual TransformerBlock::Forward(const BlockParameters& parameters, const BlockActivations& saved,
                                   const BlockScratch& scratch, BatchShape shape, Residual residual,
                                   const Matrix& delta_NC) {
  const int64_t tokens = shape.tokens();
  const Matrix out_NC = Rows(delta_NC, tokens);
  const Matrix mlp_norm_NC = Rows(MlpNorm(saved).out_NC, tokens);
  const Matrix x_NC = Norm(parameters.input_norm, saved.input_norm, residual);
  if (config_.parallel_block) {
    const Matrix attention_out_NC = Rows(scratch.attention_out_NC, tokens);
    ForwardAttention(parameters, saved, shape, attention_out_NC);
    if (config_.has_mlp_norm()) {
      Norm(parameters.post_attention_norm, saved.post_attention_norm, {x_NC, {}});
    }
    ForwardMlp(parameters, saved, mlp_norm_NC, out_NC);
    ops_.Add(attention_out_NC, out_NC, out_NC);
    return {x_NC, out_NC};
  }
  ForwardAttention(parameters, saved, shape, out_NC);
  const Matrix middle_NC =
      Norm(parameters.post_attention_norm, saved.post_attention_norm, {x_NC, out_NC});
  ForwardMlp(parameters, saved, mlp_norm_NC, out_NC);
  return {middle_NC, out_NC};
}

void TransformerBlock::ForwardAttention(const BlockParameters& parameters,
                                        const BlockActivations& saved, BatchShape shape,
                                        const Matrix& out_NC) {
  const int64_t tokens = shape.tokens();
  const Matrix qkv_NQ = Rows(saved.qkv_NQ, tokens);
  Linear(parameters.qkv, Rows(saved.input_norm.out_NC, tokens), qkv_NQ);
  Rotate(Split(qkv_NQ).qk, shape, /*inverse=*/false);
  ops_.Attention(AttentionArgsOf(saved, shape));
  Linear(parameters.attention_out, Rows(saved.attention_NA, tokens), out_NC);
}

void TransformerBlock::ForwardMlp(const BlockParameters& parameters, const BlockActivations& saved,
                                  const Matrix& in_NC, const Matrix& out_NC) {
  const Matrix up_NU = Rows(saved.up_NU, in_NC.rows);
  const Matrix inner_NI = Rows(saved.inner_NI, in_NC.rows);
  Linear(parameters.up, in_NC, up_NU);
  ops_.Activation({.kind = config_.activation, .in = up_NU, .out = inner_NI});
  Linear(parameters.down, inner_NI, out_NC);
}

void TransformerBlock::Backward(const BlockParameters& parameters, const BlockActivations& saved,
                                const BlockScratch& scratch, BatchShape shape,
                                const Matrix& d_stream_NC) {
  const NormActivations& mlp_norm = MlpNorm(saved);
  const auto mlp_norm_backward = [&] {
    NormBackward(parameters.post_attention_norm, mlp_norm, scratch.d_norm_NC, d_stream_NC);
  };
  LinearBackward(parameters.down, saved.inner_NI, d_stream_NC, scratch.d_inner_NI);
  ops_.ActivationBackward({.kind = config_.activation,
                           .in = saved.up_NU,
                           .d_out = scratch.d_inner_NI,
                           .d_in = scratch.d_up_NU});
  LinearBackward(parameters.up, mlp_norm.out_NC, scratch.d_up_NU, scratch.d_norm_NC);
  if (!config_.parallel_block) mlp_norm_backward();

  LinearBackward(parameters.attention_out, saved.attention_NA, d_stream_NC, scratch.d_attention_NA);
  // Only now: in a parallel block attention's output does not go through the MLP's norm.
  if (config_.parallel_block && config_.has_mlp_norm()) mlp_norm_backward();
  const Qkv d_qkv = Split(scratch.d_qkv_NQ);
  ops_.AttentionBackward({.forward = AttentionArgsOf(saved, shape),
                          .d_out = scratch.d_attention_NA,
                          .d_q = d_qkv.q,
                          .d_k = d_qkv.k,
                          .d_v = d_qkv.v});
  Rotate(d_qkv.qk, shape, /*inverse=*/true);
  // Where both branches read one norm, d_norm_NC already holds the MLP's part.
  LinearBackward(parameters.qkv, saved.input_norm.out_NC, scratch.d_qkv_NQ, scratch.d_norm_NC,
                 /*accumulate=*/!config_.has_mlp_norm());
  NormBackward(parameters.input_norm, saved.input_norm, scratch.d_norm_NC, d_stream_NC);
}

const NormActivations& TransformerBlock::MlpNorm(const BlockActivations& saved) const {
  return config_.has_mlp_norm() ? saved.post_attention_norm : saved.input_norm;
}

Matrix TransformerBlock::Norm(const NormParameters& parameters, const NormActivations& saved,
                              Residual residual) {
  const int64_t tokens = residual.base_NC.rows;
  ops::NormArgs args;
  args.kind = config_.norm;
  args.eps = config_.norm_eps;
  args.x = residual.base_NC;
  if (residual.delta_NC) {
    args.delta = residual.delta_NC;
    args.sum = Rows(saved.x_NC, tokens);
  } else {
    MEGASCALE_CHECK(residual.base_NC.data == saved.x_NC.data);
  }
  args.weight = parameters.weight;
  args.bias = parameters.bias;
  args.out = Rows(saved.out_NC, tokens);
  if (saved.mean_N) args.mean = First(saved.mean_N, tokens);
  args.rstd = First(saved.rstd_N, tokens);
  ops_.Norm(args);
  return residual.delta_NC ? args.sum : args.x;
}

void TransformerBlock::NormBackward(const NormParameters& parameters, const NormActivations& saved,
                                    const Matrix& d_out_NC, const Matrix& d_stream_NC) {
  ops_.NormBackward({.kind = config_.norm,
                     .x = saved.x_NC,
                     .weight = parameters.weight,
                     .mean = saved.mean_N,
                     .rstd = saved.rstd_N,
                     .d_out = d_out_NC,
                     .d_x = d_stream_NC,
                     .d_weight = parameters.d_weight,
                     .d_bias = parameters.d_bias});
}

void TransformerBlock::Linear(const LinearParameters& parameters, const Matrix& in,
                              const Matrix& out) {
  ops_.MatMul({.a = in,
               .b = parameters.weight,
               .c = out,
               .transpose_b = Transpose::kYes,
               .bias = parameters.bias});
}

void TransformerBlock::LinearBackward(const LinearParameters& parameters, const Matrix& in,
                                      const Matrix& d_out, const Matrix& d_in, bool accumulate) {
  ops_.MatMul({.a = d_out,
               .b = in,
               .c = parameters.d_weight,
               .transpose_a = Transpose::kYes,
               .accumulate = true,
               .bias = {}});
  if (parameters.d_bias) ops_.AddColumnSums(d_out, parameters.d_bias);
  ops_.MatMul(
      {.a = d_out, .b = parameters.weight, .c = d_in, .accumulate = accumulate, .bias = {}});
}

TransformerBlock::Qkv TransformerBlock::Split(const Matrix& qkv_NQ) const {
  const int64_t q_size = config_.num_heads * config_.head_dim;
  const int64_t kv_size = config_.num_kv_heads * config_.head_dim;
  return {.q = Columns(qkv_NQ, 0, q_size),
          .k = Columns(qkv_NQ, q_size, kv_size),
          .v = Columns(qkv_NQ, q_size + kv_size, kv_size),
          .qk = Columns(qkv_NQ, 0, q_size + kv_size)};
}

ops::AttentionArgs TransformerBlock::AttentionArgsOf(const BlockActivations& saved,
                                                     BatchShape shape) const {
  const int64_t tokens = shape.tokens();
  const Qkv qkv = Split(Rows(saved.qkv_NQ, tokens));
  return {.batch = shape.batch,
          .seq = shape.seq,
          .heads = config_.num_heads,
          .kv_heads = config_.num_kv_heads,
          .head_dim = config_.head_dim,
          .window = config_.window,
          .q = qkv.q,
          .k = qkv.k,
          .v = qkv.v,
          .out = Rows(saved.attention_NA, tokens),
          .log_sum_exp = First(saved.log_sum_exp_BHT, tokens * config_.num_heads)};
}

void TransformerBlock::Rotate(const Matrix& qk, BatchShape shape, bool inverse) {
  if (config_.position != PositionKind::kRotary) return;
  ops_.Rotary({.seq = shape.seq,
               .heads = config_.num_heads + config_.num_kv_heads,
               .head_dim = config_.head_dim,
               .rotary_dim = config_.rotary_dim,
               .theta = config_.rope_theta,
               .x = qk,
               .inverse = inverse});
}

}  // namespace megascale::model
