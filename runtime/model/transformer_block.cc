#include "runtime/model/transformer_block.h"

#include <utility>

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

Vector Part(const Vector& vector, int64_t begin, int64_t count) {
  char* data = vector.as<char>() + begin * static_cast<int64_t>(SizeOf(vector.dtype));
  return {data, vector.dtype, count};
}

const NormParameters& NormOfHead(const BlockParameters& parameters, const ModelConfig& config,
                                 int64_t head) {
  return head < config.num_heads ? parameters.q_norm : parameters.k_norm;
}

BlockParameters WithoutWeightGradients(BlockParameters parameters) {
  for (LinearParameters* linear :
       {&parameters.qkv, &parameters.attention_out, &parameters.up, &parameters.down}) {
    linear->d_weight = {};
  }
  return parameters;
}

}  // namespace

Residual TransformerBlock::Forward(const BlockParameters& parameters, const BlockActivations& saved,
                                   const BlockScratch& scratch, BatchShape shape, Residual residual,
                                   const Matrix& delta_RC) {
  const int64_t rows = rows_.NumOwn(shape.tokens());
  const Matrix out_RC = Rows(delta_RC, rows);
  const Matrix partial_NC = rows_.All(out_RC, scratch.partial_NC);
  const auto gather = [&](const NormActivations& norm) {
    return rows_.Gather(Rows(norm.out_RC, rows), scratch.gathered_NC);
  };
  const Matrix x_RC = Norm(parameters.input_norm, saved.input_norm, residual);
  GatheredRows norm = gather(saved.input_norm);
  const Matrix attention_NA = Attend(parameters, saved, norm, shape);
  if (config_.parallel_block) {
    const Matrix attention_out_NC = Rows(scratch.attention_out_NC, shape.tokens());
    Linear(parameters.attention_out, attention_NA, attention_out_NC);
    if (config_.has_mlp_norm()) {
      Norm(parameters.post_attention_norm, saved.post_attention_norm, {x_RC, {}});
      norm = gather(saved.post_attention_norm);
    }
    const Matrix inner_NI = ExpandAndActivate(parameters, saved, norm);
    const auto make = [&](int64_t first, int64_t count) {
      const Matrix piece_RC = RowsFrom(partial_NC, first, count);
      Linear(parameters.down, RowsFrom(inner_NI, first, count), piece_RC);
      ops_.Add(RowsFrom(attention_out_NC, first, count), piece_RC, piece_RC);
    };
    rows_.Wait(rows_.AddUp(partial_NC, out_RC, make));
    return {x_RC, out_RC};
  }
  LinearAddUp(parameters.attention_out, attention_NA, partial_NC, out_RC);
  const Matrix middle_RC =
      Norm(parameters.post_attention_norm, saved.post_attention_norm, {x_RC, out_RC});
  const Matrix inner_NI = ExpandAndActivate(parameters, saved, gather(saved.post_attention_norm));
  LinearAddUp(parameters.down, inner_NI, partial_NC, out_RC);
  return {middle_RC, out_RC};
}

Matrix TransformerBlock::Attend(const BlockParameters& parameters, const BlockActivations& saved,
                                const GatheredRows& norm, BatchShape shape) {
  const Matrix qkv_NQ = Rows(saved.qkv_NQ, shape.tokens());
  Linear(parameters.qkv, norm, qkv_NQ);
  NormHeads(parameters, saved, shape);
  Rotate(QkvOf(saved, shape.tokens()).qk, shape, /*inverse=*/false);
  if (shape.places_N) {
    const ops::CachedAttentionArgs cached = CachedAttentionArgsOf(parameters, saved, shape);
    ops_.CachedAttention(cached);
    return cached.out;
  }
  const ops::AttentionArgs attention = AttentionArgsOf(parameters, saved, shape);
  ops_.Attention(attention);
  return attention.out;
}

Matrix TransformerBlock::ExpandAndActivate(const BlockParameters& parameters,
                                           const BlockActivations& saved,
                                           const GatheredRows& norm) {
  const Matrix up_NU = Rows(saved.up_NU, norm.all_NC.rows);
  const Matrix inner_NI = Rows(saved.inner_NI, norm.all_NC.rows);
  rows_.ForEach(norm, [&](int64_t first, const Matrix& piece_NC) {
    ops_.MatMul({.a = piece_NC,
                 .b = parameters.up.weight,
                 .c = RowsFrom(up_NU, first, piece_NC.rows),
                 .transpose_b = Transpose::kYes,
                 .bias = parameters.up.bias,
                 .few_rows = generates_ && piece_NC.rows <= ops::kFewRows,
                 .activation = config_.activation,
                 .activated = RowsFrom(inner_NI, first, piece_NC.rows)});
  });
  return inner_NI;
}

void TransformerBlock::ForwardAgain(Recompute what, const BlockParameters& parameters,
                                    const BlockActivations& saved, const BlockScratch& scratch,
                                    BatchShape shape, const Matrix& delta_RC) {
  const Matrix& x_RC = saved.input_norm.x_RC;
  const bool products = what == Recompute::kFull;
  GatheredRows norm;
  Norm(parameters.input_norm, saved.input_norm, {x_RC, {}});
  if (products) {
    norm = rows_.Gather(saved.input_norm.out_RC, scratch.gathered_NC);
    Attend(parameters, saved, norm, shape);
  }
  if (config_.has_mlp_norm()) {
    Residual middle = {saved.post_attention_norm.x_RC, {}};
    if (products && !config_.parallel_block) {
      const Matrix partial_NC = rows_.All(delta_RC, scratch.partial_NC);
      LinearAddUp(parameters.attention_out, saved.attention_NA, partial_NC, delta_RC);
      middle = {x_RC, delta_RC};
    }
    Norm(parameters.post_attention_norm, saved.post_attention_norm, middle);
    if (products) norm = rows_.Gather(saved.post_attention_norm.out_RC, scratch.gathered_NC);
  }
  if (products) {
    ExpandAndActivate(parameters, saved, norm);
  } else {
    ops_.Activation({.kind = config_.activation, .in = saved.up_NU, .out = saved.inner_NI});
  }
}

void TransformerBlock::Backward(const BlockParameters& parameters, const BlockActivations& saved,
                                const BlockScratch& scratch, BatchShape shape,
                                const Matrix& d_stream_RC) {
  BackwardMlp(parameters, saved, scratch, d_stream_RC);
  BackwardAttention(parameters, saved, scratch, shape, d_stream_RC);
}

void TransformerBlock::BackwardInput(const BlockParameters& parameters, BatchShape shape,
                                     BlockActivations* saved, BlockScratch* scratch,
                                     const Matrix& d_stream_RC) {
  const BlockParameters rest = WithoutWeightGradients(parameters);
  BackwardMlp(rest, *saved, *scratch, d_stream_RC);
  if (!config_.parallel_block) {
    ops_.Cast(Flat(d_stream_RC), Flat(saved->post_attention_norm.x_RC));
  }
  BackwardAttention(rest, *saved, *scratch, shape, d_stream_RC);
  std::swap(saved->up_NU, scratch->d_up_NU);
  std::swap(saved->qkv_NQ, scratch->d_qkv_NQ);
}

// Each gather begins after the last read of its buffer, and overlaps with a product.
void TransformerBlock::BackwardWeights(const BlockParameters& parameters,
                                       const BlockActivations& saved, const BlockScratch& scratch,
                                       const Matrix& d_output_RC) {
  const Matrix& d_up_NU = saved.up_NU;
  const Matrix& d_qkv_NQ = saved.qkv_NQ;
  GatheredRows d_out = rows_.Gather(d_output_RC, scratch.d_gathered_NC);
  GatheredRows norm = rows_.Gather(MlpNorm(saved).out_RC, scratch.gathered_NC);
  AddWeightGradient(parameters.down, saved.inner_NI, rows_.Wait(d_out));
  if (!config_.parallel_block) {
    d_out = rows_.Gather(saved.post_attention_norm.x_RC, scratch.d_gathered_NC);
  }
  AddWeightGradient(parameters.up, rows_.Wait(norm), d_up_NU);
  if (config_.has_mlp_norm()) norm = rows_.Gather(saved.input_norm.out_RC, scratch.gathered_NC);
  AddWeightGradient(parameters.attention_out, saved.attention_NA, rows_.Wait(d_out));
  AddWeightGradient(parameters.qkv, rows_.Wait(norm), d_qkv_NQ);
}

GatheredRows TransformerBlock::GatherForWeights(const LinearParameters& linear,
                                                const NormActivations& norm,
                                                const BlockScratch& scratch) {
  return linear.d_weight ? rows_.Gather(norm.out_RC, scratch.gathered_NC) : GatheredRows();
}

void TransformerBlock::BackwardMlp(const BlockParameters& parameters, const BlockActivations& saved,
                                   const BlockScratch& scratch, const Matrix& d_stream_RC) {
  const GatheredRows d_out = rows_.Gather(d_stream_RC, scratch.d_gathered_NC);
  const GatheredRows norm = GatherForWeights(parameters.up, MlpNorm(saved), scratch);
  AddBiasGradient(parameters.down, d_stream_RC);
  ActivationInputGradient(parameters.down, d_out, saved, scratch);
  AddWeightGradient(parameters.down, saved.inner_NI, d_out.all_NC);
  const Matrix d_norm_NC = rows_.All(scratch.d_norm_RC, scratch.partial_NC);
  if (!config_.has_mlp_norm()) {
    InputGradient(parameters.up, scratch.d_up_NU, d_norm_NC);
    AddGradients(parameters.up, norm, scratch.d_up_NU);
    return;
  }
  const auto make = [&](int64_t first, int64_t count) {
    InputGradient(parameters.up, RowsFrom(scratch.d_up_NU, first, count),
                  RowsFrom(d_norm_NC, first, count));
  };
  const SumOfRows sum = rows_.AddUp(d_norm_NC, scratch.d_norm_RC, make);
  AddGradients(parameters.up, norm, scratch.d_up_NU);
  rows_.Wait(sum);
  if (config_.parallel_block) return;
  NormBackward(parameters.post_attention_norm, saved.post_attention_norm, scratch.d_norm_RC,
               d_stream_RC);
}

void TransformerBlock::BackwardAttention(const BlockParameters& parameters,
                                         const BlockActivations& saved, const BlockScratch& scratch,
                                         BatchShape shape, const Matrix& d_stream_RC) {
  // In a parallel block both branches have the same output gradient, and may share a norm.
  const GatheredRows d_out = config_.parallel_block
                                 ? rows_.Gathered(d_stream_RC, scratch.d_gathered_NC)
                                 : rows_.Gather(d_stream_RC, scratch.d_gathered_NC);
  const bool shared = !config_.has_mlp_norm();
  const GatheredRows norm = shared ? rows_.Gathered(saved.input_norm.out_RC, scratch.gathered_NC)
                                   : GatherForWeights(parameters.qkv, saved.input_norm, scratch);
  AddBiasGradient(parameters.attention_out, d_stream_RC);
  InputGradient(parameters.attention_out, d_out, scratch.d_attention_NA);
  AddWeightGradient(parameters.attention_out, saved.attention_NA, d_out.all_NC);
  // Not earlier: in a parallel block attention's gradient must not include that of the MLP's norm.
  if (config_.parallel_block && config_.has_mlp_norm()) {
    NormBackward(parameters.post_attention_norm, saved.post_attention_norm, scratch.d_norm_RC,
                 d_stream_RC);
  }
  const Qkv d_qkv = OfAttention(scratch.d_qkv_NQ, scratch.d_qk_NS);
  if (config_.qk_norm) ops_.FillZero(Flat(scratch.d_qkv_NQ));  // NormBackward adds to it
  ops_.AttentionBackward({.forward = AttentionArgsOf(parameters, saved, shape),
                          .d_out = scratch.d_attention_NA,
                          .d_q = d_qkv.q,
                          .d_k = d_qkv.k,
                          .d_v = d_qkv.v});
  Rotate(d_qkv.qk, shape, /*inverse=*/true);
  NormHeadsBackward(parameters, saved, scratch);
  // If the norm is shared, this already holds the MLP's part.
  const Matrix d_norm_NC = rows_.All(scratch.d_norm_RC, scratch.partial_NC);
  const auto make = [&](int64_t first, int64_t count) {
    InputGradient(parameters.qkv, RowsFrom(scratch.d_qkv_NQ, first, count),
                  RowsFrom(d_norm_NC, first, count), /*accumulate=*/shared);
  };
  const SumOfRows sum = rows_.AddUp(d_norm_NC, scratch.d_norm_RC, make);
  AddGradients(parameters.qkv, norm, scratch.d_qkv_NQ);
  rows_.Wait(sum);
  NormBackward(parameters.input_norm, saved.input_norm, scratch.d_norm_RC, d_stream_RC);
}

const NormActivations& TransformerBlock::MlpNorm(const BlockActivations& saved) const {
  return config_.has_mlp_norm() ? saved.post_attention_norm : saved.input_norm;
}

Matrix TransformerBlock::Norm(const NormParameters& parameters, const NormActivations& saved,
                              Residual residual) {
  const int64_t tokens = residual.base_RC.rows;
  ops::NormArgs args;
  args.kind = config_.norm;
  args.eps = config_.norm_eps;
  args.x = residual.base_RC;
  if (residual.delta_RC) {
    args.delta = residual.delta_RC;
    args.sum = Rows(saved.x_RC, tokens);
  } else {
    MEGASCALE_CHECK(residual.base_RC.data == saved.x_RC.data);
  }
  args.weight = parameters.weight;
  args.bias = parameters.bias;
  args.out = Rows(saved.out_RC, tokens);
  if (saved.mean_R) args.mean = First(saved.mean_R, tokens);
  args.rstd = First(saved.rstd_R, tokens);
  ops_.Norm(args);
  return residual.delta_RC ? args.sum : args.x;
}

void TransformerBlock::NormBackward(const NormParameters& parameters, const NormActivations& saved,
                                    const Matrix& d_out_RC, const Matrix& d_stream_RC) {
  ops_.NormBackward({.kind = config_.norm,
                     .x = saved.x_RC,
                     .weight = parameters.weight,
                     .mean = saved.mean_R,
                     .rstd = saved.rstd_R,
                     .d_out = d_out_RC,
                     .d_x = d_stream_RC,
                     .d_weight = parameters.d_weight,
                     .d_bias = parameters.d_bias});
}

void TransformerBlock::Linear(const LinearParameters& parameters, const Matrix& in,
                              const Matrix& out) {
  ops_.MatMul({.a = in,
               .b = parameters.weight,
               .c = out,
               .transpose_b = Transpose::kYes,
               .bias = parameters.bias,
               .few_rows = generates_ && in.rows <= ops::kFewRows});
}

void TransformerBlock::Linear(const LinearParameters& parameters, const GatheredRows& in,
                              const Matrix& out) {
  rows_.ForEach(in, [&](int64_t first, const Matrix& piece_RC) {
    Linear(parameters, piece_RC, RowsFrom(out, first, piece_RC.rows));
  });
}

void TransformerBlock::LinearAddUp(const LinearParameters& parameters, const Matrix& in,
                                   const Matrix& partial_NC, const Matrix& out_RC) {
  rows_.Wait(rows_.AddUp(partial_NC, out_RC, [&](int64_t first, int64_t rows) {
    Linear(parameters, RowsFrom(in, first, rows), RowsFrom(partial_NC, first, rows));
  }));
}

void TransformerBlock::InputGradient(const LinearParameters& parameters, const Matrix& d_out,
                                     const Matrix& d_in, bool accumulate) {
  ops_.MatMul(
      {.a = d_out, .b = parameters.weight, .c = d_in, .accumulate = accumulate, .bias = {}});
}

void TransformerBlock::InputGradient(const LinearParameters& parameters, const GatheredRows& d_out,
                                     const Matrix& d_in) {
  rows_.ForEach(d_out, [&](int64_t first, const Matrix& piece_RC) {
    InputGradient(parameters, piece_RC, RowsFrom(d_in, first, piece_RC.rows));
  });
}

void TransformerBlock::ActivationInputGradient(const LinearParameters& parameters,
                                               const GatheredRows& d_out,
                                               const BlockActivations& saved,
                                               const BlockScratch& scratch) {
  rows_.ForEach(d_out, [&](int64_t first, const Matrix& piece_NC) {
    const int64_t rows = piece_NC.rows;
    ops_.MatMul({.a = piece_NC,
                 .b = parameters.weight,
                 .c = RowsFrom(scratch.d_inner_NI, first, rows),
                 .bias = {},
                 .activation = config_.activation,
                 .activation_in = RowsFrom(saved.up_NU, first, rows),
                 .d_activation_in = RowsFrom(scratch.d_up_NU, first, rows)});
  });
}

void TransformerBlock::AddBiasGradient(const LinearParameters& parameters, const Matrix& d_out) {
  if (parameters.d_bias) ops_.AddColumnSums(d_out, parameters.d_bias);
}

void TransformerBlock::AddWeightGradient(const LinearParameters& parameters, const Matrix& in,
                                         const Matrix& d_out) {
  if (!parameters.d_weight) return;
  ops_.MatMul({.a = d_out,
               .b = in,
               .c = parameters.d_weight,
               .transpose_a = Transpose::kYes,
               .accumulate = true,
               .bias = {}});
}

void TransformerBlock::AddGradients(const LinearParameters& parameters, const GatheredRows& in,
                                    const Matrix& d_out) {
  if (!parameters.d_weight) return AddBiasGradient(parameters, d_out);
  ops_.MatMul({.a = d_out,
               .b = rows_.Wait(in),
               .c = parameters.d_weight,
               .transpose_a = Transpose::kYes,
               .accumulate = true,
               .bias = {},
               .d_bias = parameters.d_bias});
}

TransformerBlock::Qkv TransformerBlock::Split(const Matrix& qkv_NQ) const {
  const int64_t q_size = config_.num_heads * config_.head_dim;
  const int64_t kv_size = config_.num_kv_heads * config_.head_dim;
  return {.q = Columns(qkv_NQ, 0, q_size),
          .k = Columns(qkv_NQ, q_size, kv_size),
          .v = Columns(qkv_NQ, q_size + kv_size, kv_size),
          .qk = Columns(qkv_NQ, 0, q_size + kv_size)};
}

TransformerBlock::Qkv TransformerBlock::OfAttention(const Matrix& qkv_NQ,
                                                    const Matrix& qk_NS) const {
  Qkv qkv = Split(qkv_NQ);
  if (!config_.qk_norm) return qkv;
  const int64_t q_size = config_.num_heads * config_.head_dim;
  qkv.q = Columns(qk_NS, 0, q_size);
  qkv.k = Columns(qk_NS, q_size, config_.qk_size() - q_size);
  qkv.qk = qk_NS;
  return qkv;
}

TransformerBlock::Qkv TransformerBlock::QkvOf(const BlockActivations& saved, int64_t tokens) const {
  return OfAttention(Rows(saved.qkv_NQ, tokens),
                     config_.qk_norm ? Rows(saved.qk_NS, tokens) : Matrix());
}

// Rows of a matrix must have one distance, so each head has a call of its own.
void TransformerBlock::NormHeads(const BlockParameters& parameters, const BlockActivations& saved,
                                 BatchShape shape) {
  if (!config_.qk_norm) return;
  const int64_t tokens = shape.tokens();
  const Matrix qk_NS = Split(Rows(saved.qkv_NQ, tokens)).qk;
  for (int64_t head = 0; head < config_.num_heads + config_.num_kv_heads; ++head) {
    const int64_t first = head * config_.head_dim;
    ops_.Norm({.kind = ops::NormKind::kRmsNorm,
               .eps = config_.norm_eps,
               .x = Columns(qk_NS, first, config_.head_dim),
               .delta = {},
               .sum = {},
               .weight = NormOfHead(parameters, config_, head).weight,
               .bias = {},
               .out = Columns(Rows(saved.qk_NS, tokens), first, config_.head_dim),
               .mean = {},
               .rstd = Part(saved.qk_rstd_HKN, head * tokens, tokens)});
  }
}

void TransformerBlock::NormHeadsBackward(const BlockParameters& parameters,
                                         const BlockActivations& saved,
                                         const BlockScratch& scratch) {
  if (!config_.qk_norm) return;
  const int64_t tokens = scratch.d_qk_NS.rows;
  const Matrix qk_NS = Split(saved.qkv_NQ).qk;
  const Matrix d_qk_NS = Split(scratch.d_qkv_NQ).qk;
  for (int64_t head = 0; head < config_.num_heads + config_.num_kv_heads; ++head) {
    const NormParameters& norm = NormOfHead(parameters, config_, head);
    const int64_t first = head * config_.head_dim;
    ops_.NormBackward({.kind = ops::NormKind::kRmsNorm,
                       .x = Columns(qk_NS, first, config_.head_dim),
                       .weight = norm.weight,
                       .mean = {},
                       .rstd = Part(saved.qk_rstd_HKN, head * tokens, tokens),
                       .d_out = Columns(scratch.d_qk_NS, first, config_.head_dim),
                       .d_x = Columns(d_qk_NS, first, config_.head_dim),
                       .d_weight = norm.d_weight,
                       .d_bias = {}});
  }
}

ops::AttentionArgs TransformerBlock::AttentionArgsOf(const BlockParameters& parameters,
                                                     const BlockActivations& saved,
                                                     BatchShape shape) const {
  const int64_t tokens = shape.tokens();
  const Qkv qkv = QkvOf(saved, tokens);
  return {.batch = shape.batch,
          .seq = shape.seq,
          .heads = config_.num_heads,
          .kv_heads = config_.num_kv_heads,
          .head_dim = config_.head_dim,
          .window = parameters.window,
          .q = qkv.q,
          .k = qkv.k,
          .v = qkv.v,
          .out = Rows(saved.attention_NA, tokens),
          .log_sum_exp = First(saved.log_sum_exp_BHT, tokens * config_.num_heads),
          .document_begins = shape.document_begins_N};
}

ops::CachedAttentionArgs TransformerBlock::CachedAttentionArgsOf(const BlockParameters& parameters,
                                                                 const BlockActivations& saved,
                                                                 BatchShape shape) const {
  const Qkv qkv = QkvOf(saved, shape.tokens());
  return {.heads = config_.num_heads,
          .kv_heads = config_.num_kv_heads,
          .head_dim = config_.head_dim,
          .window = parameters.window,
          .capacity = shape.capacity,
          .places = shape.places_N,
          .q = qkv.q,
          .k = qkv.k,
          .v = qkv.v,
          .cached_k = saved.cached_k,
          .cached_v = saved.cached_v,
          .out = Rows(saved.attention_NA, shape.tokens())};
}

void TransformerBlock::Rotate(const Matrix& qk, BatchShape shape, bool inverse) {
  if (config_.position != PositionKind::kRotary) return;
  ops_.Rotary({.seq = shape.places_N ? shape.capacity : shape.seq,
               .heads = config_.num_heads + config_.num_kv_heads,
               .head_dim = config_.head_dim,
               .rotary_dim = config_.rotary_dim,
               .theta = config_.rope_theta,
               .scaling = config_.rope_scaling,
               .x = qk,
               .inverse = inverse,
               .places = shape.places_N});
}

}  // namespace megascale::model
