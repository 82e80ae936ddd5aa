// Elementwise kernels: sums, activations, conversions, AdamW.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/ops/cpu/elements.cc"
#include "runtime/base/vector_targets.h"
// Highway prescribes this order: the first include compiles this file once per instruction set.
#include "hwy/foreach_target.h"
// clang-format off
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/cpu/vectors-inl.h"
// clang-format on
#include <cmath>
#include <cstring>

#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace megascale::ops::cpu::HWY_NAMESPACE {

struct ValueAndSlope {
  Floats value;
  Floats slope;
};

// Returns half of erfc(|x| / sqrt 2), the Gaussian's mass beyond |x|, from e^(-x^2/2); the absolute
// error is below 1e-7. Source: Abramowitz and Stegun, 7.1.26.
HWY_INLINE Floats GaussianTail(Floats magnitude, Floats exponential) {
  const Floats t = hn::Div(Splat(1), hn::MulAdd(magnitude, Splat(0.3275911 * M_SQRT1_2), Splat(1)));
  Floats polynomial = Splat(0.5 * 1.061405429);
  polynomial = hn::MulAdd(polynomial, t, Splat(0.5 * -1.453152027));
  polynomial = hn::MulAdd(polynomial, t, Splat(0.5 * 1.421413741));
  polynomial = hn::MulAdd(polynomial, t, Splat(0.5 * -0.284496736));
  polynomial = hn::MulAdd(polynomial, t, Splat(0.5 * 0.254829592));
  return hn::Mul(hn::Mul(polynomial, t), exponential);
}

// T: the type to which the results are rounded.
struct Gelu {
  template <typename T>
  static HWY_INLINE ValueAndSlope Get(Floats x) {
    const Floats exponential = Exp(hn::Mul(hn::Mul(x, x), Splat(-0.5)));
    const Floats tail = GaussianTail(hn::Abs(x), exponential);
    const Floats mass = hn::IfThenElse(hn::Lt(x, Zero()), tail, hn::Sub(Splat(1), tail));
    const Floats density = hn::Mul(exponential, Splat(0.3989422804014327));
    return {hn::Mul(x, mass), hn::MulAdd(x, density, mass)};
  }
};

// (1 + tanh y) / 2 is the logistic function of 2y.
struct GeluTanh {
  template <typename T>
  static HWY_INLINE ValueAndSlope Get(Floats x) {
    const double scale = 2 * 0.7978845608028654;  // 2 sqrt(2 / pi)
    const Floats square = hn::Mul(x, x);
    const Floats inner = hn::Mul(x, hn::MulAdd(square, Splat(scale * 0.044715), Splat(scale)));
    const Floats inner_slope = hn::MulAdd(square, Splat(3 * scale * 0.044715), Splat(scale));
    const Floats mass = Sigmoid<T>(inner);
    const Floats value = hn::Mul(x, mass);
    return {value, hn::MulAdd(hn::NegMulAdd(value, mass, value), inner_slope, mass)};
  }
};

struct Silu {
  template <typename T>
  static HWY_INLINE ValueAndSlope Get(Floats x) {
    const Floats sigmoid = Sigmoid<T>(x);
    const Floats value = hn::Mul(x, sigmoid);
    return {value, hn::MulAdd(value, hn::Sub(Splat(1), sigmoid), sigmoid)};
  }
};

template <typename T, typename Function>
void MapRows(const ActivationArgs& args, Range rows) {
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    const T* in = args.in.as<T>() + n * args.in.stride;
    T* out = args.out.as<T>() + n * args.out.stride;
    ForEachTwo(args.out.cols, [&](int64_t c, auto lanes) HWY_ATTR {
      const Two x = LoadTwoAhead(in + c, lanes);
      StoreTwo({Function::template Get<T>(x.a).value, Function::template Get<T>(x.b).value},
               out + c, lanes);
    });
  }
}

template <typename T>
void SwiGluRows(const ActivationArgs& args, Range rows) {
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    const T* gate = args.in.as<T>() + n * args.in.stride;
    const T* up = gate + args.out.cols;
    T* out = args.out.as<T>() + n * args.out.stride;
    ForEachTwo(args.out.cols, [&](int64_t c, auto lanes) HWY_ATTR {
      const Two x = LoadTwoAhead(gate + c, lanes), y = LoadTwoAhead(up + c, lanes);
      StoreTwo({hn::Mul(Silu::Get<T>(x.a).value, y.a), hn::Mul(Silu::Get<T>(x.b).value, y.b)},
               out + c, lanes);
    });
  }
}

template <typename T>
void ActivationOf(const ActivationArgs& args, Range rows) {
  switch (args.kind) {
    case ActivationKind::kGelu:
      return MapRows<T, Gelu>(args, rows);
    case ActivationKind::kGeluTanh:
      return MapRows<T, GeluTanh>(args, rows);
    case ActivationKind::kSwiGlu:
      return SwiGluRows<T>(args, rows);
  }
}

template <typename T, typename Function>
void MapRowsBackward(const ActivationBackwardArgs& args, Range rows) {
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    const T* in = args.in.as<T>() + n * args.in.stride;
    const T* d_out = args.d_out.as<T>() + n * args.d_out.stride;
    T* d_in = args.d_in.as<T>() + n * args.d_in.stride;
    ForEachTwo(args.in.cols, [&](int64_t c, auto lanes) HWY_ATTR {
      const Two x = LoadTwoAhead(in + c, lanes), gradient = LoadTwoAhead(d_out + c, lanes);
      StoreTwo({hn::Mul(Function::template Get<T>(x.a).slope, gradient.a),
                hn::Mul(Function::template Get<T>(x.b).slope, gradient.b)},
               d_in + c, lanes);
    });
  }
}

template <typename T>
void SwiGluRowsBackward(const ActivationBackwardArgs& args, Range rows) {
  const int64_t cols = args.d_out.cols;
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    const T* gate = args.in.as<T>() + n * args.in.stride;
    const T* d_out = args.d_out.as<T>() + n * args.d_out.stride;
    T* d_gate = args.d_in.as<T>() + n * args.d_in.stride;
    ForEachTwo(cols, [&](int64_t c, auto lanes) HWY_ATTR {
      const Two x = LoadTwoAhead(gate + c, lanes), up = LoadTwoAhead(gate + cols + c, lanes);
      const Two gradient = LoadTwoAhead(d_out + c, lanes);
      const ValueAndSlope a = Silu::Get<T>(x.a), b = Silu::Get<T>(x.b);
      StoreTwo({hn::Mul(hn::Mul(gradient.a, up.a), a.slope),
                hn::Mul(hn::Mul(gradient.b, up.b), b.slope)},
               d_gate + c, lanes);
      StoreTwo({hn::Mul(gradient.a, a.value), hn::Mul(gradient.b, b.value)}, d_gate + cols + c,
               lanes);
    });
  }
}

template <typename T>
void ActivationBackwardOf(const ActivationBackwardArgs& args, Range rows) {
  switch (args.kind) {
    case ActivationKind::kGelu:
      return MapRowsBackward<T, Gelu>(args, rows);
    case ActivationKind::kGeluTanh:
      return MapRowsBackward<T, GeluTanh>(args, rows);
    case ActivationKind::kSwiGlu:
      return SwiGluRowsBackward<T>(args, rows);
  }
}

template <typename T>
void AddOf(const Matrix& a, const Matrix& b, const Matrix& out, Range rows) {
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    AddRow<T>(a.as<T>() + n * a.stride, b.as<T>() + n * b.stride, out.as<T>() + n * out.stride,
              out.cols);
  }
}

template <typename From, typename To>
void CastOf(const Vector& from, const Vector& to, Range elements) {
  ForEachVector(elements.begin, elements.end, [&](int64_t i, auto lanes) HWY_ATTR {
    Store(Load(from.as<From>() + i, lanes), to.as<To>() + i, lanes);
  });
}

// Updates the moments and calls use(i, lanes, w, u) with the master weight and its update. `use`
// then changes the weight in one operation, which rounds once on processors with fused
// multiply-add.
template <typename Use>
HWY_INLINE void ForEachUpdate(const AdamWArgs& args, Range elements, const Use& use) {
  const double* numbers = args.step_numbers.as<const double>();
  const double correction1 = 1 - std::pow(args.beta1, numbers[kStep]);
  const double correction2 = 1 - std::pow(args.beta2, numbers[kStep]);
  const Floats beta1 = Splat(args.beta1), one_less_beta1 = Splat(1 - args.beta1);
  const Floats beta2 = Splat(args.beta2), one_less_beta2 = Splat(1 - args.beta2);
  const Floats grad_scale = Splat(numbers[kClipFactor]), eps = Splat(args.eps);
  const Floats correction = Splat(1 / correction1), decay = Splat(args.weight_decay);
  const Floats root_correction = Splat(1 / std::sqrt(correction2));
  const float* master = args.master.as<float>();
  float* exp_avg = args.exp_avg.as<float>();
  float* exp_avg_sq = args.exp_avg_sq.as<float>();
  const float* gradient = args.grad.as<float>();
  ForEachVector(elements.begin, elements.end, [&](int64_t i, auto lanes) HWY_ATTR {
    const Floats grad = hn::Mul(Load(gradient + i, lanes), grad_scale);
    const Floats first = hn::MulAdd(Load(exp_avg + i, lanes), beta1, hn::Mul(grad, one_less_beta1));
    const Floats second = hn::MulAdd(Load(exp_avg_sq + i, lanes), beta2,
                                     hn::Mul(hn::Mul(grad, grad), one_less_beta2));
    Store(first, exp_avg + i, lanes);
    Store(second, exp_avg_sq + i, lanes);
    const Floats root = hn::MulAdd(hn::Sqrt(second), root_correction, eps);
    const Floats weight = Load(master + i, lanes);
    use(i, lanes, weight, hn::MulAdd(correction, hn::Div(first, root), hn::Mul(weight, decay)));
  });
}

template <typename T>
void AdamWOf(const AdamWArgs& args, Range elements) {
  const Floats rate = Splat(args.step_numbers.as<const double>()[kLearningRate]);
  float* master = args.master.as<float>();
  T* copy = args.compute_copy.as<T>();
  ForEachUpdate(args, elements, [&](int64_t i, auto lanes, Floats weight, Floats update) HWY_ATTR {
    const Floats updated = hn::NegMulAdd(rate, update, weight);
    Store(updated, master + i, lanes);
    if (copy != nullptr) Store(updated, copy + i, lanes);
  });
}

void AdamUpdate(const AdamWArgs& args, Range elements) {
  float* updates = args.update.as<float>();
  ForEachUpdate(args, elements, [&](int64_t i, auto lanes, Floats weight, Floats update) HWY_ATTR {
    Store(update, updates + i, lanes);
  });
}

void AddScaled(double factor, const Vector& x, const Vector& out, Range elements) {
  const Floats scale = Splat(factor);
  float* sums = out.as<float>();
  ForEachVector(elements.begin, elements.end, [&](int64_t i, auto lanes) HWY_ATTR {
    Store(hn::MulAdd(scale, Load(x.as<float>() + i, lanes), Load(sums + i, lanes)), sums + i,
          lanes);
  });
}

// From this size on, memory bypasses the caches: they would not keep it until it is read again.
constexpr int64_t kStreamedBytes = int64_t{4} << 20;

void FillZero(void* data, int64_t num_bytes) {
  if (num_bytes < kStreamedBytes) {
    std::memset(data, 0, num_bytes);
    return;
  }
  auto* begin = static_cast<char*>(data);
  char* end = begin + num_bytes;
  constexpr int64_t kStep = kLanes * static_cast<int64_t>(sizeof(float));
  const int64_t misplaced = reinterpret_cast<uintptr_t>(begin) % kStep;
  const int64_t head = misplaced == 0 ? 0 : kStep - misplaced;
  std::memset(begin, 0, head);
  for (begin += head; begin + kStep <= end; begin += kStep) {
    hn::Stream(Zero(), FloatTag(), reinterpret_cast<float*>(begin));
  }
  std::memset(begin, 0, end - begin);
  hwy::FlushStream();
}

double SumOfSquares(const Vector& x, Range elements) {
  const hn::ScalableTag<double> tag;
  const hn::Rebind<float, decltype(tag)> float_tag;
  constexpr int64_t kStep = HWY_LANES(double);
  const float* data = x.as<float>();
  // Four running sums hide the latency of the addition.
  auto sum0 = hn::Zero(tag), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  const auto wide = [&](int64_t i)
                        HWY_ATTR { return hn::PromoteTo(tag, hn::LoadU(float_tag, data + i)); };
  int64_t i = elements.begin;
  for (; i + 4 * kStep <= elements.end; i += 4 * kStep) {
    FetchAhead(data + i, 4 * kStep * static_cast<int64_t>(sizeof(float)));
    const auto x0 = wide(i), x1 = wide(i + kStep);
    const auto x2 = wide(i + 2 * kStep), x3 = wide(i + 3 * kStep);
    sum0 = hn::MulAdd(x0, x0, sum0);
    sum1 = hn::MulAdd(x1, x1, sum1);
    sum2 = hn::MulAdd(x2, x2, sum2);
    sum3 = hn::MulAdd(x3, x3, sum3);
  }
  const auto sums = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  double total = hn::GetLane(hn::SumOfLanes(tag, sums));
  for (; i < elements.end; ++i) total += static_cast<double>(data[i]) * data[i];
  return total;
}

// One entry per operator, which selects the element type itself, so that an operator needs one
// table of targets.
void AddEntry(const Matrix& a, const Matrix& b, const Matrix& out, Range rows) {
  out.dtype == DType::kF32 ? AddOf<float>(a, b, out, rows) : AddOf<BFloat16>(a, b, out, rows);
}
void ActivationEntry(const ActivationArgs& args, Range rows) {
  args.in.dtype == DType::kF32 ? ActivationOf<float>(args, rows)
                               : ActivationOf<BFloat16>(args, rows);
}
void ActivationBackwardEntry(const ActivationBackwardArgs& args, Range rows) {
  args.in.dtype == DType::kF32 ? ActivationBackwardOf<float>(args, rows)
                               : ActivationBackwardOf<BFloat16>(args, rows);
}
void CastEntry(const Vector& from, const Vector& to, Range elements) {
  from.dtype == DType::kF32 ? CastOf<float, BFloat16>(from, to, elements)
                            : CastOf<BFloat16, float>(from, to, elements);
}
void AdamWEntry(const AdamWArgs& args, Range elements) {
  if (args.update) return AdamUpdate(args, elements);
  args.compute_copy&& args.compute_copy.dtype == DType::kBF16 ? AdamWOf<BFloat16>(args, elements)
                                                              : AdamWOf<float>(args, elements);
}

}  // namespace megascale::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megascale::ops::cpu {

HWY_EXPORT(AddEntry);
HWY_EXPORT(ActivationEntry);
HWY_EXPORT(ActivationBackwardEntry);
HWY_EXPORT(CastEntry);
HWY_EXPORT(AdamWEntry);
HWY_EXPORT(AddScaled);
HWY_EXPORT(SumOfSquares);
HWY_EXPORT(FillZero);

void Add(const Matrix& a, const Matrix& b, const Matrix& out, Range rows) {
  HWY_DYNAMIC_DISPATCH(AddEntry)(a, b, out, rows);
}
void Activation(const ActivationArgs& args, Range rows) {
  HWY_DYNAMIC_DISPATCH(ActivationEntry)(args, rows);
}
void ActivationBackward(const ActivationBackwardArgs& args, Range rows) {
  HWY_DYNAMIC_DISPATCH(ActivationBackwardEntry)(args, rows);
}
void Cast(const Vector& from, const Vector& to, Range elements) {
  HWY_DYNAMIC_DISPATCH(CastEntry)(from, to, elements);
}
void FillZero(void* data, int64_t num_bytes) { HWY_DYNAMIC_DISPATCH(FillZero)(data, num_bytes); }
void AddScaled(double factor, const Vector& x, const Vector& out, Range elements) {
  HWY_DYNAMIC_DISPATCH(AddScaled)(factor, x, out, elements);
}
double SumOfSquares(const Vector& x, Range elements) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquares)(x, elements);
}
void AdamW(const AdamWArgs& args, Range elements) {
  HWY_DYNAMIC_DISPATCH(AdamWEntry)(args, elements);
}

}  // namespace megascale::ops::cpu
#endif
