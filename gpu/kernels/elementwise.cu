// Rotary embedding, GELU and SwiGLU both ways, sums, and conversions: each element of the result
// follows from one or a few elements of the arguments.
//
// A thread owns a pack of neighbouring elements of one row: 8 in bf16, 4 in fp32. It loads all that
// it needs, computes in fp32, rounds once and stores: each byte is read or written once, by
// accesses of 16 bytes where the tensors are aligned. A block is a part of one row; where the rows
// of all tensors follow each other without a gap, the launcher makes one long row of them. No
// shared memory, no sums over threads.
//
// Bytes for an element of E bytes: Add 3 E, AddScaled 12, GELU 2 E forward and 3 E backward, SwiGLU
// 3 E and 5 E for an element of the output, Rotary 2 E, Cast one of each type.
//
// GELU by tanh is x * sigmoid(2 u), which needs one exponential and one reciprocal: a GPU has 16
// units for those beside 128 for sums, and bf16 at memory speed leaves three of them an element.
//
// Rotary turns the pair (i, i + R/2) of the head's first R elements at position p by the angle
// p theta^(-2i/R). Angles of thousands of turns need fp64; so a small kernel writes a table
// [positions, R/2] of cosines and sines, which all batches, heads and threads of the next one read:
// 8 bytes for each pair, nearly always from the cache.
#include "gpu/kernels/elements.h"
#include "gpu/kernels/elementwise_params.h"
#include "gpu/kernels/vocabulary.h"

namespace megascale::kernels {
namespace {

template <typename T>
MEGASCALE_DEVICE void AddRows(const AddParams& params) {
  constexpr int kPack = kPackOf<T>;
  const Piece piece = MyPiece<kPack>(params.split);
  const int64_t row = MyRow(params.split);
  const Pack<T, kPack> a = LoadPiece<kPack>(RowOf<const T>(params.a, row), piece);
  const Pack<T, kPack> b = LoadPiece<kPack>(RowOf<const T>(params.b, row), piece);
  float sum[kPack];
  MEGASCALE_UNROLL
  for (int i = 0; i < kPack; ++i) sum[i] = ToFloat(a.at[i]) + ToFloat(b.at[i]);
  StoreFloats(RowOf<T>(params.out, row), piece, sum);
}

MEGASCALE_DEVICE float Sigmoid(float x) { return Reciprocal(1 + Exp(-x)); }

struct Gelu {
  static constexpr float kRootOfHalf = 0.70710678f;
  static constexpr float kDensityAt0 = 0.39894228f;  // 1 / sqrt(2 pi)

  MEGASCALE_DEVICE static float Cumulative(float x) { return 0.5f * (1 + Erf(x * kRootOfHalf)); }
  MEGASCALE_DEVICE static float Value(float x) { return x * Cumulative(x); }
  MEGASCALE_DEVICE static float Slope(float x) {
    return Cumulative(x) + x * (kDensityAt0 * Exp(-0.5f * x * x));
  }
};

struct GeluTanh {
  static constexpr float kScale = 0.79788456f;  // sqrt(2 / pi)
  static constexpr float kCube = 0.044715f;

  // (1 + tanh(u)) / 2 = sigmoid(2 u)
  MEGASCALE_DEVICE static float Gate(float x) {
    return Sigmoid(2 * kScale * (x + kCube * x * x * x));
  }
  MEGASCALE_DEVICE static float Value(float x) { return x * Gate(x); }
  MEGASCALE_DEVICE static float Slope(float x) {
    const float gate = Gate(x);
    const float inner_slope = 2 * kScale * (1 + 3 * kCube * x * x);
    return gate + x * (gate * (1 - gate)) * inner_slope;
  }
};

template <typename T, typename Function>
MEGASCALE_DEVICE void Activate(const ActivationParams& params) {
  constexpr int kPack = kPackOf<T>;
  const Piece piece = MyPiece<kPack>(params.split);
  const int64_t row = MyRow(params.split);
  float x[kPack];
  LoadFloats(RowOf<const T>(params.in, row), piece, x);
  MEGASCALE_UNROLL
  for (int i = 0; i < kPack; ++i) x[i] = Function::Value(x[i]);
  StoreFloats(RowOf<T>(params.out, row), piece, x);
}

template <typename T, typename Function>
MEGASCALE_DEVICE void ActivateBackward(const ActivationBackwardParams& params) {
  constexpr int kPack = kPackOf<T>;
  const Piece piece = MyPiece<kPack>(params.split);
  const int64_t row = MyRow(params.split);
  const Pack<T, kPack> x = LoadPiece<kPack>(RowOf<const T>(params.in, row), piece);
  const Pack<T, kPack> d_out = LoadPiece<kPack>(RowOf<const T>(params.d_out, row), piece);
  float d_in[kPack];
  MEGASCALE_UNROLL
  for (int i = 0; i < kPack; ++i) {
    d_in[i] = ToFloat(d_out.at[i]) * Function::Slope(ToFloat(x.at[i]));
  }
  StoreFloats(RowOf<T>(params.d_in, row), piece, d_in);
}

// out = gate * sigmoid(gate) * up
template <typename T>
MEGASCALE_DEVICE void SwiGlu(const ActivationParams& params) {
  constexpr int kPack = kPackOf<T>;
  const Piece piece = MyPiece<kPack>(params.split);
  const int64_t row = MyRow(params.split);
  const Global<const T> in = RowOf<const T>(params.in, row);
  const Pack<T, kPack> gates = LoadPiece<kPack>(in, piece);
  const Pack<T, kPack> ups = LoadPiece<kPack>(in + params.split.cols, piece);
  float out[kPack];
  MEGASCALE_UNROLL
  for (int i = 0; i < kPack; ++i) {
    const float gate = ToFloat(gates.at[i]);
    out[i] = gate * Sigmoid(gate) * ToFloat(ups.at[i]);
  }
  StoreFloats(RowOf<T>(params.out, row), piece, out);
}

template <typename T>
MEGASCALE_DEVICE void SwiGluBackward(const ActivationBackwardParams& params) {
  constexpr int kPack = kPackOf<T>;
  const Piece piece = MyPiece<kPack>(params.split);
  const int64_t row = MyRow(params.split), cols = params.split.cols;
  const Global<const T> in = RowOf<const T>(params.in, row);
  const Pack<T, kPack> gates = LoadPiece<kPack>(in, piece);
  const Pack<T, kPack> ups = LoadPiece<kPack>(in + cols, piece);
  const Pack<T, kPack> d_outs = LoadPiece<kPack>(RowOf<const T>(params.d_out, row), piece);
  float d_gate[kPack], d_up[kPack];
  MEGASCALE_UNROLL
  for (int i = 0; i < kPack; ++i) {
    const float gate = ToFloat(gates.at[i]), d_out = ToFloat(d_outs.at[i]);
    const float sigmoid = Sigmoid(gate), silu = gate * sigmoid;
    d_gate[i] = d_out * ToFloat(ups.at[i]) * (sigmoid + silu * (1 - sigmoid));
    d_up[i] = d_out * silu;
  }
  const Global<T> d_in = RowOf<T>(params.d_in, row);
  StoreFloats(d_in, piece, d_gate);
  StoreFloats(d_in + cols, piece, d_up);
}

// A thread owns a pack of pairs of one head.
template <typename T>
MEGASCALE_DEVICE void Rotate(const RotaryParams& params) {
  constexpr int kPack = kPackOf<T>;
  const int packs_of_head = (params.half + kPack - 1) / kPack;
  const int pack = BlockIndex() % params.split.blocks_of_row * NumThreads() + ThreadIndex();
  if (pack >= params.heads * packs_of_head) return;
  const int64_t row = MyRow(params.split);
  const Piece piece =
      PieceAt<kPack>(pack % packs_of_head * kPack, params.half, params.split.is_aligned);
  const Global<T> first = RowOf<T>(params.x, row) + int64_t{pack / packs_of_head} * params.head_dim;
  const Global<T> second = first + params.half;
  const Pack<T, kPack> xs = LoadPiece<kPack>(Global<const T>(first.data()), piece);
  const Pack<T, kPack> ys = LoadPiece<kPack>(Global<const T>(second.data()), piece);
  float x[kPack], y[kPack], turns[2 * kPack];
  LoadFloats(Global<const float>(params.table) + row % params.seq * (2 * params.half),
             {2 * piece.first, 2 * piece.count, piece.is_whole}, turns);
  MEGASCALE_UNROLL
  for (int i = 0; i < kPack; ++i) {
    const float cosine = turns[2 * i], sine = turns[2 * i + 1];
    const float x_before = ToFloat(xs.at[i]), y_before = ToFloat(ys.at[i]);
    x[i] = x_before * cosine - y_before * sine;
    y[i] = y_before * cosine + x_before * sine;
  }
  StoreFloats(first, piece, x);
  StoreFloats(second, piece, y);
}

// Types of which one is fp32: through fp32.
template <typename From, typename To>
MEGASCALE_DEVICE void Convert(const CastParams& params) {
  constexpr int kPack = kPackOf < To >> kPackOf<From> ? kPackOf<To> : kPackOf<From>;
  const Piece piece = MyPiece<kPack>(params.split);
  float x[kPack];
  LoadFloats(Global<const From>(params.from), piece, x);
  StoreFloats(Global<To>(params.to), piece, x);
}

MEGASCALE_DEVICE double ReadAny(const void* data, ElementType type, int64_t i) {
  switch (type) {
    case ElementType::kF64:
      return Global<const double>(data)[i];
    case ElementType::kF32:
      return Global<const float>(data)[i];
    case ElementType::kBF16:
      return ToFloat(Global<const BFloat16>(data)[i]);
    case ElementType::kI32:
      return Global<const int32_t>(data)[i];
  }
  return 0;
}

template <typename T>
MEGASCALE_DEVICE void Write(void* data, int64_t i, T value) {
  const Global<T> elements(data);
  elements[i] = value;
}

MEGASCALE_DEVICE void WriteAny(void* data, ElementType type, int64_t i, double value) {
  switch (type) {
    case ElementType::kF64:
      return Write(data, i, value);
    case ElementType::kF32:
      return Write(data, i, static_cast<float>(value));
    case ElementType::kBF16:
      return Write(data, i, ToBFloat16(static_cast<float>(value)));
    case ElementType::kI32:
      return Write(data, i, static_cast<int32_t>(value));
  }
}

}  // namespace

MEGASCALE_KERNEL(AddF32, AddParams, kRowThreads) { AddRows<float>(params); }
MEGASCALE_KERNEL(AddBF16, AddParams, kRowThreads) { AddRows<BFloat16>(params); }

MEGASCALE_KERNEL(AddScaledF32, AddScaledParams, kRowThreads) {
  constexpr int kPack = kPackOf<float>;
  const Piece piece = MyPiece<kPack>(params.split);
  float x[kPack], out[kPack];
  LoadFloats(Global<const float>(params.x), piece, x);
  LoadFloats(Global<const float>(params.out), piece, out);
  MEGASCALE_UNROLL
  for (int i = 0; i < kPack; ++i) out[i] += params.factor * x[i];
  StoreFloats(Global<float>(params.out), piece, out);
}

MEGASCALE_KERNEL(GeluF32, ActivationParams, kRowThreads) { Activate<float, Gelu>(params); }
MEGASCALE_KERNEL(GeluBF16, ActivationParams, kRowThreads) { Activate<BFloat16, Gelu>(params); }
MEGASCALE_KERNEL(GeluTanhF32, ActivationParams, kRowThreads) { Activate<float, GeluTanh>(params); }
MEGASCALE_KERNEL(GeluTanhBF16, ActivationParams, kRowThreads) {
  Activate<BFloat16, GeluTanh>(params);
}
MEGASCALE_KERNEL(SwiGluF32, ActivationParams, kRowThreads) { SwiGlu<float>(params); }
MEGASCALE_KERNEL(SwiGluBF16, ActivationParams, kRowThreads) { SwiGlu<BFloat16>(params); }

MEGASCALE_KERNEL(GeluBackwardF32, ActivationBackwardParams, kRowThreads) {
  ActivateBackward<float, Gelu>(params);
}
MEGASCALE_KERNEL(GeluBackwardBF16, ActivationBackwardParams, kRowThreads) {
  ActivateBackward<BFloat16, Gelu>(params);
}
MEGASCALE_KERNEL(GeluTanhBackwardF32, ActivationBackwardParams, kRowThreads) {
  ActivateBackward<float, GeluTanh>(params);
}
MEGASCALE_KERNEL(GeluTanhBackwardBF16, ActivationBackwardParams, kRowThreads) {
  ActivateBackward<BFloat16, GeluTanh>(params);
}
MEGASCALE_KERNEL(SwiGluBackwardF32, ActivationBackwardParams, kRowThreads) {
  SwiGluBackward<float>(params);
}
MEGASCALE_KERNEL(SwiGluBackwardBF16, ActivationBackwardParams, kRowThreads) {
  SwiGluBackward<BFloat16>(params);
}

// A thread for each element of the table.
MEGASCALE_KERNEL(RotaryTable, RotaryTableParams, kRowThreads) {
  constexpr double kInversePi = 0.31830988618379067;
  const int64_t at = int64_t{BlockIndex()} * NumThreads() + ThreadIndex();
  if (at >= int64_t{params.positions} * params.half) return;
  const int64_t position = at / params.half, pair = at % params.half;
  const double exponent = -params.log2_theta * static_cast<double>(pair) / params.half;
  double frequency = Exp2(exponent);
  if (params.factor != 1) {
    double kept = params.kept_at_0 + params.kept_per_pair * static_cast<double>(pair) +
                  params.kept_per_frequency * frequency;
    kept = kept < 0 ? 0 : kept > 1 ? 1 : kept;
    frequency *= kept + (1 - kept) / params.factor;
  }
  const double half_turns = static_cast<double>(position) * frequency * kInversePi;
  const Global<float> table(params.table);
  table[2 * at] = static_cast<float>(params.amplitude * CosPi(half_turns));
  table[2 * at + 1] = static_cast<float>(params.amplitude * params.sign * SinPi(half_turns));
}
MEGASCALE_KERNEL(RotaryF32, RotaryParams, kRowThreads) { Rotate<float>(params); }
MEGASCALE_KERNEL(RotaryBF16, RotaryParams, kRowThreads) { Rotate<BFloat16>(params); }

MEGASCALE_KERNEL(CastF32ToBF16, CastParams, kRowThreads) { Convert<float, BFloat16>(params); }
MEGASCALE_KERNEL(CastBF16ToF32, CastParams, kRowThreads) { Convert<BFloat16, float>(params); }
MEGASCALE_KERNEL(CastF32ToF32, CastParams, kRowThreads) { Convert<float, float>(params); }
MEGASCALE_KERNEL(CastBF16ToBF16, CastParams, kRowThreads) { Convert<BFloat16, BFloat16>(params); }
// All other pairs, through fp64, an element for each thread.
MEGASCALE_KERNEL(CastAny, CastParams, kRowThreads) {
  const int64_t i = MyPiece<1>(params.split).first;
  if (i >= params.split.cols) return;
  WriteAny(params.to, params.to_type, i, ReadAny(params.from, params.from_type, i));
}

}  // namespace megascale::kernels
