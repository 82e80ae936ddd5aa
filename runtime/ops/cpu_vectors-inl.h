// What the vector kernels share: loops over vectors of fp32, loads and stores that convert bf16,
// and exponentials. Compiled once per instruction set: include it after hwy/foreach_target.h,
// between kernels only.
//
// Accuracy of Exp: 2 units in the last place over the normal range of fp32; NaN stays NaN.

#if defined(MEGASCALE_RUNTIME_OPS_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGASCALE_RUNTIME_OPS_CPU_VECTORS_INL_H_
#undef MEGASCALE_RUNTIME_OPS_CPU_VECTORS_INL_H_
#else
#define MEGASCALE_RUNTIME_OPS_CPU_VECTORS_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"
#include "runtime/tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace megascale::ops::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using tensor::BFloat16;
using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::RebindToSigned<FloatTag>;
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using HalfBitsTag = hn::Rebind<uint16_t, FloatTag>;
using Floats = hn::Vec<FloatTag>;

constexpr int64_t kLanes = HWY_LANES(float);

// How much of a vector lies inside a row: all of it, or its first lanes.
struct AllLanes {};
struct FirstLanes {
  int64_t count;
};

HWY_INLINE Floats Splat(double value) { return hn::Set(FloatTag(), static_cast<float>(value)); }
HWY_INLINE Floats Zero() { return hn::Zero(FloatTag()); }

template <class Tag>
HWY_INLINE hn::Vec<Tag> LoadAs(Tag tag, const float* from) {
  return hn::LoadU(tag, from);
}
template <class Tag>
HWY_INLINE hn::Vec<Tag> LoadAs(Tag tag, const BFloat16* from) {
  const hn::Rebind<uint16_t, Tag> half_tag;
  const auto bits = hn::LoadU(half_tag, reinterpret_cast<const uint16_t*>(from));
  const auto wide = hn::PromoteTo(hn::RebindToUnsigned<Tag>(), bits);
  return hn::BitCast(tag, hn::ShiftLeft<16>(wide));
}
template <typename T>
HWY_INLINE Floats Load(const T* from, AllLanes) {
  return LoadAs(FloatTag(), from);
}

HWY_INLINE void Store(Floats value, float* to, AllLanes) { hn::StoreU(value, FloatTag(), to); }
HWY_INLINE void Store(Floats value, BFloat16* to, AllLanes) {
  const BitsTag tag;
  const auto bits = hn::BitCast(tag, value);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(tag, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(tag, 0x7FFF))));
  const auto is_nan = hn::RebindMask(tag, hn::IsNaN(value));
  const auto quiet = hn::Or(high, hn::Set(tag, 0x40));
  const auto result = hn::TruncateTo(HalfBitsTag(), hn::IfThenElse(is_nan, quiet, rounded));
  hn::StoreU(result, HalfBitsTag(), reinterpret_cast<uint16_t*>(to));
}

// Lanes beyond `count` are neither read nor written; they load as zero.
template <typename T>
HWY_INLINE Floats Load(const T* from, FirstLanes lanes) {
  alignas(64) T buffer[kLanes] = {};
  std::memcpy(buffer, from, lanes.count * sizeof(T));
  return Load(buffer, AllLanes());
}
template <typename T>
HWY_INLINE void Store(Floats value, T* to, FirstLanes lanes) {
  alignas(64) T buffer[kLanes];
  Store(value, buffer, AllLanes());
  std::memcpy(to, buffer, lanes.count * sizeof(T));
}

// `value` with `other` in the lanes outside.
HWY_INLINE Floats Within(Floats value, Floats other, AllLanes) { return value; }
HWY_INLINE Floats Within(Floats value, Floats other, FirstLanes lanes) {
  return hn::IfThenElse(hn::FirstN(FloatTag(), lanes.count), value, other);
}

// Calls body(index, lanes) for each vector of [begin, end).
template <typename Body>
HWY_INLINE void ForEachVector(int64_t begin, int64_t end, Body body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) body(i, AllLanes());
  if (i < end) body(i, FirstLanes{end - i});
}

// combine(…) over term(index, lanes) for each vector of [0, cols), `start` where there is none.
// Four running values hide the latency of `combine`; their order is fixed by `cols`.
template <typename Combine, typename Term>
HWY_INLINE Floats Fold(int64_t cols, Floats start, Combine combine, Term term) {
  Floats f0 = start, f1 = start, f2 = start, f3 = start;
  int64_t c = 0;
  for (; c + 4 * kLanes <= cols; c += 4 * kLanes) {
    f0 = combine(f0, term(c, AllLanes()));
    f1 = combine(f1, term(c + kLanes, AllLanes()));
    f2 = combine(f2, term(c + 2 * kLanes, AllLanes()));
    f3 = combine(f3, term(c + 3 * kLanes, AllLanes()));
  }
  ForEachVector(c, cols, [&](int64_t i, auto lanes) HWY_ATTR {
    f0 = combine(f0, Within(term(i, lanes), start, lanes));
  });
  return combine(combine(f0, f1), combine(f2, f3));
}
template <typename Term>
HWY_INLINE Floats AddUp(int64_t cols, Term term) {
  return Fold(
      cols, Zero(), [](Floats a, Floats b) HWY_ATTR { return hn::Add(a, b); }, term);
}

HWY_INLINE float Sum(Floats value) { return hn::GetLane(hn::SumOfLanes(FloatTag(), value)); }
HWY_INLINE float Max(Floats value) { return hn::GetLane(hn::MaxOfLanes(FloatTag(), value)); }

// e^x; 0 where the result would be below the normal range, the greatest finite power where above.
HWY_INLINE Floats Exp(Floats x) {
  const FloatTag tag;
  const IntTag int_tag;
  const Floats lowest = Splat(-87.33654);
  // The bounds come first, so that the processor's minimum and maximum hand a NaN on.
  const Floats clamped = hn::Max(lowest, hn::Min(Splat(88.72), x));
  // Adding 1.5 * 2^23 rounds to an integer, which is then found in the lowest bits.
  const Floats shifter = Splat(0x1.8p23);
  const Floats shifted = hn::MulAdd(clamped, Splat(1.44269504089), shifter);
  const Floats n = hn::Sub(shifted, shifter);
  const Floats high = hn::NegMulAdd(n, hn::Set(tag, 0x1.62ep-1f), clamped);
  const Floats r = hn::NegMulAdd(n, hn::Set(tag, 0x1.0bfbe8p-15f), high);
  // (e^r - 1 - r) / r^2 interpolated at Chebyshev's nodes of |r| <= ln(2) / 2.
  Floats polynomial = Splat(0.0013926175888627768);
  polynomial = hn::MulAdd(polynomial, r, Splat(0.008363173343241215));
  polynomial = hn::MulAdd(polynomial, r, Splat(0.041666556149721146));
  polynomial = hn::MulAdd(polynomial, r, Splat(0.16666577756404877));
  polynomial = hn::MulAdd(polynomial, r, Splat(0.5));
  polynomial = hn::MulAdd(polynomial, hn::Mul(r, r), hn::Add(r, Splat(1)));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(int_tag, shifted));
  const Floats power = hn::BitCast(tag, hn::Add(hn::BitCast(int_tag, polynomial), exponent));
  // The difference is 0, or NaN where x was.
  return hn::IfThenElse(hn::Ge(x, lowest), power, hn::Sub(clamped, clamped));
}

HWY_INLINE Floats Sigmoid(Floats x) {
  return hn::Div(Splat(1), hn::Add(Splat(1), Exp(hn::Neg(x))));
}

}  // namespace megascale::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
