// Kernels that work along rows or columns: norms, cross-entropy, rotary positions, embeddings,
// sums.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/ops/cpu/rows.cc"
#include "runtime/base/vector_targets.h"
// Highway prescribes this order: the first include compiles this file once per instruction set.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/cache_control.h"
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/cpu/vectors-inl.h"
// clang-format on
#include <algorithm>
#include <cmath>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace megascale::ops::cpu::HWY_NAMESPACE {

template <typename T>
HWY_INLINE T* Row(const Matrix& matrix, int64_t row) {
  return matrix.as<T>() + row * matrix.stride;
}

template <typename T>
void NormOf(const NormArgs& args, Range rows) {
  const int64_t cols = args.x.cols;
  const bool centred = args.kind == NormKind::kLayerNorm;
  const T* weight = args.weight.as<T>();
  const T* bias = args.bias.as<T>();
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    const T* x = Row<T>(args.x, n);
    if (args.delta) {
      T* sum = Row<T>(args.sum, n);
      AddRow(x, static_cast<const T*>(Row<T>(args.delta, n)), sum, cols);
      x = sum;  // normalises the rounded sum, the only one that backward has
    }
    float mean = 0;
    if (centred) {
      const Floats total = AddUp<T>(
          cols, [&](int64_t c, auto lanes) HWY_ATTR { return LoadTwoAhead(x + c, lanes); });
      mean = Sum(total) / static_cast<float>(cols);
      args.mean.as<float>()[n] = mean;
    }
    const Floats means = Splat(mean);
    const Floats squares = AddUp<T>(cols, [&](int64_t c, auto lanes) HWY_ATTR {
      const Two value = LoadTwo(x + c, lanes);
      const Floats a = hn::Sub(value.a, means), b = hn::Sub(value.b, means);
      return Two{hn::Mul(a, a), hn::Mul(b, b)};
    });
    const float rstd =
        1.0f / std::sqrt(Sum(squares) / static_cast<float>(cols) + static_cast<float>(args.eps));
    args.rstd.as<float>()[n] = rstd;
    const Floats rstds = Splat(rstd);
    T* out = Row<T>(args.out, n);
    ForEachTwo(cols, [&](int64_t c, auto lanes) HWY_ATTR {
      const Two value = LoadTwo(x + c, lanes), scale = LoadTwo(weight + c, lanes);
      const Two shift = bias != nullptr ? LoadTwo(bias + c, lanes) : Two{Zero(), Zero()};
      const Floats a = hn::Mul(hn::Sub(value.a, means), rstds);
      const Floats b = hn::Mul(hn::Sub(value.b, means), rstds);
      StoreTwo({hn::MulAdd(a, scale.a, shift.a), hn::MulAdd(b, scale.b, shift.b)}, out + c, lanes);
    });
  }
}

template <typename T>
void NormBackwardOf(const NormBackwardArgs& args, Range rows) {
  const int64_t cols = args.x.cols;
  const bool centred = args.kind == NormKind::kLayerNorm;
  const T* weight = args.weight.as<T>();
  float* d_weight = args.d_weight.as<float>();
  float* d_bias = args.d_bias.as<float>();
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    const T* x = Row<T>(args.x, n);
    const T* d_out = Row<T>(args.d_out, n);
    T* d_x = Row<T>(args.d_x, n);
    const Floats mean = Splat(centred ? args.mean.as<float>()[n] : 0);
    const Floats rstd = Splat(args.rstd.as<float>()[n]);
    Floats gradient_sum = Zero(), product_sum = Zero();
    ForEachVector(0, cols, [&](int64_t c, auto lanes) HWY_ATTR {
      const Floats gradient = Load(d_out + c, lanes);
      const Floats normal = hn::Mul(hn::Sub(Load(x + c, lanes), mean), rstd);
      const Floats product = hn::Mul(gradient, normal);
      const Floats scale = Load(weight + c, lanes);
      gradient_sum = hn::MulAdd(gradient, scale, gradient_sum);
      product_sum = hn::MulAdd(product, scale, product_sum);
      Store(hn::Add(Load(d_weight + c, lanes), product), d_weight + c, lanes);
      if (d_bias != nullptr) {
        Store(hn::Add(Load(d_bias + c, lanes), gradient), d_bias + c, lanes);
      }
    });
    const Floats gradient_mean = Splat(centred ? Sum(gradient_sum) / static_cast<double>(cols) : 0);
    const Floats product_mean = Splat(Sum(product_sum) / static_cast<double>(cols));
    const auto add = [&](Floats sum, Floats gradient, Floats scale, Floats value) HWY_ATTR {
      const Floats d_normal = hn::MulSub(gradient, scale, gradient_mean);
      const Floats normal = hn::Mul(hn::Sub(value, mean), rstd);
      return hn::MulAdd(hn::NegMulAdd(normal, product_mean, d_normal), rstd, sum);
    };
    ForEachTwo(cols, [&](int64_t c, auto lanes) HWY_ATTR {
      const Two sum = LoadTwoAhead(d_x + c, lanes), gradient = LoadTwo(d_out + c, lanes);
      const Two scale = LoadTwo(weight + c, lanes), value = LoadTwo(x + c, lanes);
      StoreTwo({add(sum.a, gradient.a, scale.a, value.a), add(sum.b, gradient.b, scale.b, value.b)},
               d_x + c, lanes);
    });
  }
}

template <typename T>
HWY_INLINE float Greatest(const T* logits, int64_t cols) {
  return Max(Fold<T>(
      cols, Splat(-std::numeric_limits<float>::infinity()),
      [](Floats a, Floats b) HWY_ATTR { return hn::Max(a, b); },
      [&](int64_t c, auto lanes) HWY_ATTR { return LoadTwoAhead(logits + c, lanes); }));
}

template <typename T>
HWY_INLINE Two PowersOf(const T* logits, Floats maxima, auto lanes) {
  const Two x = LoadTwo(logits, lanes);
  return {ExpFor<T>(hn::Sub(x.a, maxima)), ExpFor<T>(hn::Sub(x.b, maxima))};
}

template <typename T>
void CrossEntropyOf(const CrossEntropyArgs& args, const CrossEntropyScratch& scratch, Range rows) {
  const int64_t cols = args.logits.cols;
  float* powers = scratch.powers;
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    T* logits = Row<T>(args.logits, n);
    const int32_t target = args.targets.as<int32_t>()[n];
    const float max = Greatest(logits, cols);
    const Floats maxima = Splat(max);
    // `powers` stores them in the order of Two.
    const double sum = Sum(AddUp<T>(cols, [&](int64_t c, auto lanes) HWY_ATTR {
      const Two power = PowersOf(logits + c, maxima, lanes);
      if (args.backward) StoreTwo(power, powers + c, AllLanes());
      return power;
    }));
    T* target_logit = logits + target;
    const float logit = hn::GetLane(Load(target_logit, FirstLanes{1}));
    scratch.row_losses[n] = max + std::log(sum) - logit;
    if (!args.backward) continue;
    const Floats scale = Splat(args.gradient_scale / sum);
    const double target_gradient =
        (std::exp(static_cast<double>(logit) - max) / sum - 1) * args.gradient_scale;
    ForEachTwo(cols, [&](int64_t c, auto lanes) HWY_ATTR {
      const Two power = LoadTwo(powers + c, AllLanes());
      StoreTwo({hn::Mul(power.a, scale), hn::Mul(power.b, scale)}, logits + c, lanes);
    });
    Store(Splat(target_gradient), target_logit, FirstLanes{1});
  }
}

template <typename T>
void LogitStatisticsOf(const LogitStatisticsArgs& args, Range rows) {
  const int64_t num_rows = args.logits.rows, cols = args.logits.cols;
  float* statistics = args.statistics.as<float>();
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    const T* logits = Row<T>(args.logits, n);
    const int64_t target = args.targets.as<int32_t>()[n] - args.vocabulary.first_token;
    const float max = Greatest(logits, cols);
    const Floats maxima = Splat(max);
    const Floats sum = AddUp<T>(
        cols, [&](int64_t c, auto lanes) HWY_ATTR { return PowersOf(logits + c, maxima, lanes); });
    const bool is_here = target >= 0 && target < cols;
    statistics[n] = max;
    statistics[num_rows + n] = Sum(sum);
    statistics[2 * num_rows + n] =
        is_here ? hn::GetLane(Load(logits + target, FirstLanes{1})) : 0.0f;
  }
}

template <typename T>
void CrossEntropyOfPartOf(const CrossEntropyArgs& args, double* row_losses, Range rows) {
  const int64_t num_rows = args.logits.rows, cols = args.logits.cols;
  const int64_t num_parts = num_rows == 0 ? 0 : args.statistics.size / (3 * num_rows);
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    const auto statistic = [&](int64_t part, int64_t which) {
      return args.statistics.as<float>()[(3 * part + which) * num_rows + n];
    };
    float max = statistic(0, 0);
    for (int64_t part = 1; part < num_parts; ++part) max = std::max(max, statistic(part, 0));
    double sum = 0;
    double target_logit = 0;  // one part has it; the others have 0
    for (int64_t part = 0; part < num_parts; ++part) {
      sum += statistic(part, 1) * std::exp(static_cast<double>(statistic(part, 0)) - max);
      target_logit += statistic(part, 2);
    }
    row_losses[n] = max + std::log(sum) - target_logit;
    if (!args.backward) continue;
    T* logits = Row<T>(args.logits, n);
    const Floats maxima = Splat(max), scale = Splat(args.gradient_scale / sum);
    ForEachTwo(cols, [&](int64_t c, auto lanes) HWY_ATTR {
      const Two power = PowersOf(logits + c, maxima, lanes);
      StoreTwo({hn::Mul(power.a, scale), hn::Mul(power.b, scale)}, logits + c, lanes);
    });
    const int64_t target = args.targets.as<int32_t>()[n] - args.vocabulary.first_token;
    if (target < 0 || target >= cols) continue;
    const double power = std::exp(target_logit - max);
    Store(Splat((power / sum - 1) * args.gradient_scale), logits + target, FirstLanes{1});
  }
}

// Returns the row's position in its sequence of at most `seq` tokens.
HWY_INLINE int64_t PositionOf(const Vector& places, int64_t n, int64_t seq) {
  return (places ? places.as<int32_t>()[n] : n) % seq;
}

template <typename T>
void RotaryOf(const RotaryArgs& args, const float* cosines, const float* sines, Range rows) {
  const int64_t half = args.turned() / 2;
  const Floats sign = Splat(args.inverse ? -1 : 1);
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    const int64_t position = PositionOf(args.places, n, args.seq);
    const float* cosine_row = cosines + position * half;
    const float* sine_row = sines + position * half;
    for (int64_t h = 0; h < args.heads; ++h) {
      T* first = Row<T>(args.x, n) + h * args.head_dim;
      T* second = first + half;
      ForEachVector(0, half, [&](int64_t i, auto lanes) HWY_ATTR {
        const Floats cosine = Load(cosine_row + i, lanes);
        const Floats sine = hn::Mul(Load(sine_row + i, lanes), sign);
        const Floats x = Load(first + i, lanes), y = Load(second + i, lanes);
        Store(hn::NegMulAdd(y, sine, hn::Mul(x, cosine)), first + i, lanes);
        Store(hn::MulAdd(x, sine, hn::Mul(y, cosine)), second + i, lanes);
      });
    }
  }
}

HWY_INLINE int64_t DocumentBegin(const Vector& document_begins, int64_t n) {
  return document_begins ? document_begins.as<int32_t>()[n] : 0;
}

template <typename T>
void EmbeddingOf(const EmbeddingArgs& args, Range rows) {
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    const int64_t row = args.tokens.as<int32_t>()[n] - args.vocabulary.first_token;
    const bool is_here = row >= 0 && row < args.token_weight.rows;
    const T* token = is_here ? Row<T>(args.token_weight, row) : nullptr;
    const int64_t begin = DocumentBegin(args.document_begins, n);
    const T* position = args.position_weight ? Row<T>(args.position_weight,
                                                      PositionOf(args.places, n, args.seq) - begin)
                                             : nullptr;
    T* out = Row<T>(args.out, n);
    if (token != nullptr && position != nullptr) {
      AddRow(token, position, out, args.out.cols);
    } else if (token != nullptr || position != nullptr) {
      std::copy_n(token != nullptr ? token : position, args.out.cols, out);
    } else {
      std::fill_n(out, args.out.cols, T{});
    }
  }
}

template <typename T>
HWY_INLINE void AddToFloats(const T* x, float* sums, Range cols) {
  ForEachVector(cols.begin, cols.end, [&](int64_t c, auto lanes) HWY_ATTR {
    Store(hn::Add(Load(sums + c, lanes), Load(x + c, lanes)), sums + c, lanes);
  });
}

template <typename T>
void EmbeddingBackwardOf(const EmbeddingBackwardArgs& args, Range cols) {
  for (int64_t n = 0; n < args.d_out.rows; ++n) {
    const T* d_out = Row<T>(args.d_out, n);
    const int64_t row = args.tokens.as<int32_t>()[n] - args.vocabulary.first_token;
    if (row >= 0 && row < args.d_token_weight.rows) {
      AddToFloats(d_out, Row<float>(args.d_token_weight, row), cols);
    }
    if (args.d_position_weight) {
      const int64_t position = n % args.seq - DocumentBegin(args.document_begins, n);
      AddToFloats(d_out, Row<float>(args.d_position_weight, position), cols);
    }
  }
}

template <typename T>
void AddColumnSumsOf(const Matrix& x, const Vector& out, Range cols) {
  float* sums = out.as<float>() + cols.begin;
  // Adds up a block of rows before it adds them to the sums. Meanwhile it prefetches the next
  // block, whose rows are too far apart for the processor to do so.
  constexpr int64_t kRows = 16;
  for (int64_t n = 0; n < x.rows; n += kRows) {
    const T* row = Row<T>(x, n) + cols.begin;
    const int64_t rows = std::min(kRows, x.rows - n);
    const int64_t next_rows = std::min(kRows, x.rows - n - rows);
    ForEachTwo(cols.size(), [&](int64_t c, auto lanes) HWY_ATTR {
      for (int64_t i = 0; i < next_rows; ++i) hwy::Prefetch(row + (kRows + i) * x.stride + c);
      Two sum = LoadTwo(row + c, lanes);
      for (int64_t i = 1; i < rows; ++i) {
        const Two value = LoadTwo(row + i * x.stride + c, lanes);
        sum = {hn::Add(sum.a, value.a), hn::Add(sum.b, value.b)};
      }
      AddTwo<T>(sum, sums + c, lanes);
    });
  }
}

// One entry per operator, which selects the element type itself, so that an operator needs one
// table of targets.
void NormEntry(const NormArgs& args, Range rows) {
  args.x.dtype == DType::kF32 ? NormOf<float>(args, rows) : NormOf<BFloat16>(args, rows);
}
void NormBackwardEntry(const NormBackwardArgs& args, Range rows) {
  args.x.dtype == DType::kF32 ? NormBackwardOf<float>(args, rows)
                              : NormBackwardOf<BFloat16>(args, rows);
}
void CrossEntropyEntry(const CrossEntropyArgs& args, const CrossEntropyScratch& scratch,
                       Range rows) {
  args.logits.dtype == DType::kF32 ? CrossEntropyOf<float>(args, scratch, rows)
                                   : CrossEntropyOf<BFloat16>(args, scratch, rows);
}
void CrossEntropyOfPartEntry(const CrossEntropyArgs& args, double* row_losses, Range rows) {
  args.logits.dtype == DType::kF32 ? CrossEntropyOfPartOf<float>(args, row_losses, rows)
                                   : CrossEntropyOfPartOf<BFloat16>(args, row_losses, rows);
}
void LogitStatisticsEntry(const LogitStatisticsArgs& args, Range rows) {
  args.logits.dtype == DType::kF32 ? LogitStatisticsOf<float>(args, rows)
                                   : LogitStatisticsOf<BFloat16>(args, rows);
}
void RotaryEntry(const RotaryArgs& args, const float* cosines, const float* sines, Range rows) {
  args.x.dtype == DType::kF32 ? RotaryOf<float>(args, cosines, sines, rows)
                              : RotaryOf<BFloat16>(args, cosines, sines, rows);
}
void EmbeddingEntry(const EmbeddingArgs& args, Range rows) {
  args.out.dtype == DType::kF32 ? EmbeddingOf<float>(args, rows)
                                : EmbeddingOf<BFloat16>(args, rows);
}
void EmbeddingBackwardEntry(const EmbeddingBackwardArgs& args, Range cols) {
  args.d_out.dtype == DType::kF32 ? EmbeddingBackwardOf<float>(args, cols)
                                  : EmbeddingBackwardOf<BFloat16>(args, cols);
}
void AddColumnSumsEntry(const Matrix& x, const Vector& out, Range cols) {
  x.dtype == DType::kF32 ? AddColumnSumsOf<float>(x, out, cols)
                         : AddColumnSumsOf<BFloat16>(x, out, cols);
}

}  // namespace megascale::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megascale::ops::cpu {

HWY_EXPORT(NormEntry);
HWY_EXPORT(NormBackwardEntry);
HWY_EXPORT(CrossEntropyEntry);
HWY_EXPORT(CrossEntropyOfPartEntry);
HWY_EXPORT(LogitStatisticsEntry);
HWY_EXPORT(RotaryEntry);
HWY_EXPORT(EmbeddingEntry);
HWY_EXPORT(EmbeddingBackwardEntry);
HWY_EXPORT(AddColumnSumsEntry);

void Norm(const NormArgs& args, Range rows) { HWY_DYNAMIC_DISPATCH(NormEntry)(args, rows); }
void NormBackward(const NormBackwardArgs& args, Range rows) {
  HWY_DYNAMIC_DISPATCH(NormBackwardEntry)(args, rows);
}
void CrossEntropy(const CrossEntropyArgs& args, const CrossEntropyScratch& scratch, Range rows) {
  HWY_DYNAMIC_DISPATCH(CrossEntropyEntry)(args, scratch, rows);
}
void CrossEntropyOfPart(const CrossEntropyArgs& args, double* row_losses, Range rows) {
  HWY_DYNAMIC_DISPATCH(CrossEntropyOfPartEntry)(args, row_losses, rows);
}
void LogitStatistics(const LogitStatisticsArgs& args, Range rows) {
  HWY_DYNAMIC_DISPATCH(LogitStatisticsEntry)(args, rows);
}
void Rotary(const RotaryArgs& args, const float* cosines, const float* sines, Range rows) {
  HWY_DYNAMIC_DISPATCH(RotaryEntry)(args, cosines, sines, rows);
}
void Embedding(const EmbeddingArgs& args, Range rows) {
  HWY_DYNAMIC_DISPATCH(EmbeddingEntry)(args, rows);
}
void EmbeddingBackward(const EmbeddingBackwardArgs& args, Range cols) {
  HWY_DYNAMIC_DISPATCH(EmbeddingBackwardEntry)(args, cols);
}
void AddColumnSums(const Matrix& x, const Vector& out, Range cols) {
  HWY_DYNAMIC_DISPATCH(AddColumnSumsEntry)(x, out, cols);
}

}  // namespace megascale::ops::cpu
#endif
