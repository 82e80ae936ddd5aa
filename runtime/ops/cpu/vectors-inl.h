// Shared by the vector kernels: loops over fp32 vectors, loads and stores that convert bf16, and
// exponentials. Compiled once per instruction set: include it after hwy/foreach_target.h, between
// kernels only.
//
// Accuracy of Exp: 2 units in the last place over the normal range of fp32; NaN stays NaN.

#if defined(MEGASCALE_RUNTIME_OPS_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGASCALE_RUNTIME_OPS_CPU_VECTORS_INL_H_
#undef MEGASCALE_RUNTIME_OPS_CPU_VECTORS_INL_H_
#else
#define MEGASCALE_RUNTIME_OPS_CPU_VECTORS_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "hwy/cache_control.h"
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

// How many lanes of a vector lie inside a row: all, or the first ones.
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

// Returns the bits of `value` rounded to bf16, in the upper half; the lower half is undefined.
HWY_INLINE hn::Vec<BitsTag> RoundToHalf(Floats value) {
  const BitsTag tag;
  const auto bits = hn::BitCast(tag, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(tag, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(tag, 0x7FFF)));
  const auto is_nan = hn::RebindMask(tag, hn::IsNaN(value));
  return hn::IfThenElse(is_nan, hn::Or(bits, hn::Set(tag, 0x400000)), rounded);
}

HWY_INLINE void Store(Floats value, float* to, AllLanes) { hn::StoreU(value, FloatTag(), to); }
HWY_INLINE void Store(Floats value, BFloat16* to, AllLanes) {
  const auto halves = hn::TruncateTo(HalfBitsTag(), hn::ShiftRight<16>(RoundToHalf(value)));
  hn::StoreU(halves, HalfBitsTag(), reinterpret_cast<uint16_t*>(to));
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

// Calls body(index, lanes) for each vector of [begin, end).
template <typename Body>
HWY_INLINE void ForEachVector(int64_t begin, int64_t end, Body body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) body(i, AllLanes());
  if (i < end) body(i, FirstLanes{end - i});
}

// Two vectors, for operators that treat each element alike. For fp32 they are consecutive. For bf16
// `a` has the elements at even places and `b` the elements at odd places, so that no moves between
// lanes are needed.
struct Two {
  Floats a, b;
};

HWY_INLINE Two LoadTwo(const float* from, AllLanes) {
  return {Load(from, AllLanes()), Load(from + kLanes, AllLanes())};
}
HWY_INLINE Two LoadTwo(const BFloat16* from, AllLanes) {
  const BitsTag tag;
  const auto pairs = hn::LoadU(tag, reinterpret_cast<const uint32_t*>(from));
  return {hn::BitCast(FloatTag(), hn::ShiftLeft<16>(pairs)),
          hn::BitCast(FloatTag(), hn::And(pairs, hn::Set(tag, 0xFFFF0000u)))};
}
// `lanes.count` is below 2 * kLanes; elements beyond it are neither read nor written.
template <typename T>
HWY_INLINE Two LoadTwo(const T* from, FirstLanes lanes) {
  alignas(64) T buffer[2 * kLanes] = {};
  std::memcpy(buffer, from, lanes.count * sizeof(T));
  return LoadTwo(buffer, AllLanes());
}

// Prefetches memory ahead of the `num_bytes` at `from`. Without this, memory is read at a third of
// its rate, because processors prefetch too little, and never across a page.
HWY_INLINE void FetchAhead(const void* from, int64_t num_bytes) {
  constexpr int64_t kAhead = 4096, kLine = 64;
  const char* ahead = static_cast<const char*>(from) + kAhead;
  for (int64_t i = 0; i < num_bytes; i += kLine) hwy::Prefetch(ahead + i);
}

// LoadTwo for data that is not in a cache yet.
template <typename T>
HWY_INLINE Two LoadTwoAhead(const T* from, AllLanes) {
  FetchAhead(from, 2 * kLanes * static_cast<int64_t>(sizeof(T)));
  return LoadTwo(from, AllLanes());
}
template <typename T>
HWY_INLINE Two LoadTwoAhead(const T* from, FirstLanes lanes) {
  return LoadTwo(from, lanes);
}

HWY_INLINE void StoreTwo(Two two, float* to, AllLanes) {
  Store(two.a, to, AllLanes());
  Store(two.b, to + kLanes, AllLanes());
}
HWY_INLINE void StoreTwo(Two two, BFloat16* to, AllLanes) {
  const BitsTag tag;
  const auto pairs = hn::OrAnd(hn::ShiftRight<16>(RoundToHalf(two.a)), RoundToHalf(two.b),
                               hn::Set(tag, 0xFFFF0000u));
  hn::StoreU(pairs, tag, reinterpret_cast<uint32_t*>(to));
}
template <typename T>
HWY_INLINE void StoreTwo(Two two, T* to, FirstLanes lanes) {
  alignas(64) T buffer[2 * kLanes];
  StoreTwo(two, buffer, AllLanes());
  std::memcpy(to, buffer, lanes.count * sizeof(T));
}

// Adds elements that LoadTwo loaded from type T to consecutive fp32 numbers at `to`.
template <typename T>
HWY_INLINE void AddTwo(Two two, float* to, AllLanes) {
  alignas(64) float buffer[2 * kLanes];
  if constexpr (std::is_same_v<T, float>) {
    StoreTwo(two, buffer, AllLanes());
  } else {
    hn::StoreInterleaved2(two.a, two.b, FloatTag(), buffer);
  }
  const Two sum = LoadTwo(to, AllLanes()), added = LoadTwo(buffer, AllLanes());
  StoreTwo({hn::Add(sum.a, added.a), hn::Add(sum.b, added.b)}, to, AllLanes());
}
template <typename T>
HWY_INLINE void AddTwo(Two two, float* to, FirstLanes lanes) {
  alignas(64) float buffer[2 * kLanes] = {};
  std::memcpy(buffer, to, lanes.count * sizeof(float));
  AddTwo<T>(two, buffer, AllLanes());
  std::memcpy(to, buffer, lanes.count * sizeof(float));
}

// Calls body(index, lanes) for each pair of vectors of [0, count).
template <typename Body>
HWY_INLINE void ForEachTwo(int64_t count, Body body) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) body(i, AllLanes());
  if (i < count) body(i, FirstLanes{count - i});
}

template <typename T>
HWY_INLINE void AddRow(const T* a, const T* b, T* out, int64_t cols) {
  ForEachTwo(cols, [&](int64_t c, auto lanes) HWY_ATTR {
    const Two x = LoadTwoAhead(a + c, lanes), y = LoadTwoAhead(b + c, lanes);
    StoreTwo({hn::Add(x.a, y.a), hn::Add(x.b, y.b)}, out + c, lanes);
  });
}

// Returns `two` with `other` in the elements beyond those that LoadTwo<T> loaded.
template <typename T>
HWY_INLINE Two Within(Two two, Floats other, AllLanes) {
  return two;
}
template <typename T>
HWY_INLINE Two Within(Two two, Floats other, FirstLanes lanes) {
  constexpr bool kEvenAndOdd = std::is_same_v<T, BFloat16>;
  const int64_t in_a = kEvenAndOdd ? (lanes.count + 1) / 2 : std::min(lanes.count, kLanes);
  const FloatTag tag;
  return {hn::IfThenElse(hn::FirstN(tag, in_a), two.a, other),
          hn::IfThenElse(hn::FirstN(tag, lanes.count - in_a), two.b, other)};
}

// Returns combine(…) over term(index, lanes) for each pair of vectors of [0, cols); `start` if cols
// is 0. T is the type that `term` loads. Four running values hide the latency of `combine`; their
// order is fixed by `cols`.
template <typename T, typename Combine, typename Term>
HWY_INLINE Floats Fold(int64_t cols, Floats start, Combine combine, Term term) {
  Two f0 = {start, start}, f1 = f0;
  const auto take = [&](Two& f, Two x) HWY_ATTR { f = {combine(f.a, x.a), combine(f.b, x.b)}; };
  int64_t c = 0;
  for (; c + 4 * kLanes <= cols; c += 4 * kLanes) {
    take(f0, term(c, AllLanes()));
    take(f1, term(c + 2 * kLanes, AllLanes()));
  }
  ForEachTwo(cols - c, [&](int64_t i, auto lanes)
                           HWY_ATTR { take(f0, Within<T>(term(c + i, lanes), start, lanes)); });
  return combine(combine(f0.a, f0.b), combine(f1.a, f1.b));
}
template <typename T, typename Term>
HWY_INLINE Floats AddUp(int64_t cols, Term term) {
  return Fold<T>(
      cols, Zero(), [](Floats a, Floats b) HWY_ATTR { return hn::Add(a, b); }, term);
}

HWY_INLINE float Sum(Floats value) { return hn::GetLane(hn::SumOfLanes(FloatTag(), value)); }
HWY_INLINE float Max(Floats value) { return hn::GetLane(hn::MaxOfLanes(FloatTag(), value)); }

// Returns e^x; 0 if that is below the normal range, the greatest finite power if it is above the
// range.
HWY_INLINE Floats Exp(Floats x) {
  const FloatTag tag;
  const IntTag int_tag;
  const Floats lowest = Splat(-87.33654);
  // The bounds are the first arguments, so that the processor's minimum and maximum propagate NaN.
  const Floats clamped = hn::Max(lowest, hn::Min(Splat(88.72), x));
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the lowest bits.
  const Floats shifter = Splat(0x1.8p23);
  const Floats shifted = hn::MulAdd(clamped, Splat(1.44269504089), shifter);
  const Floats n = hn::Sub(shifted, shifter);
  const Floats high = hn::NegMulAdd(n, hn::Set(tag, 0x1.62ep-1f), clamped);
  const Floats r = hn::NegMulAdd(n, hn::Set(tag, 0x1.0bfbe8p-15f), high);
  // (e^r - 1 - r) / r^2 interpolated at the Chebyshev nodes of |r| <= ln(2) / 2.
  Floats polynomial = Splat(0.0013926175888627768);
  polynomial = hn::MulAdd(polynomial, r, Splat(0.008363173343241215));
  polynomial = hn::MulAdd(polynomial, r, Splat(0.041666556149721146));
  polynomial = hn::MulAdd(polynomial, r, Splat(0.16666577756404877));
  polynomial = hn::MulAdd(polynomial, r, Splat(0.5));
  polynomial = hn::MulAdd(polynomial, hn::Mul(r, r), hn::Add(r, Splat(1)));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(int_tag, shifted));
  const Floats power = hn::BitCast(tag, hn::Add(hn::BitCast(int_tag, polynomial), exponent));
  // The difference is 0, or NaN if x is NaN.
  return hn::IfThenElse(hn::Ge(x, lowest), power, hn::Sub(clamped, clamped));
}

// Returns 2^x with a relative error below 5e-6, for results that are then rounded to bf16. Clamps x
// to ±126.
HWY_INLINE Floats RoughPowerOfTwo(Floats x) {
  const IntTag int_tag;
  const Floats clamped = hn::Max(Splat(-126), hn::Min(Splat(126), x));  // propagates NaN
  const Floats shifter = Splat(0x1.8p23);
  const Floats shifted = hn::Add(clamped, shifter);
  const Floats r = hn::Sub(clamped, hn::Sub(shifted, shifter));
  // Interpolated at the Chebyshev nodes of |r| <= 1/2.
  Floats polynomial = Splat(0.009666368515383477);
  polynomial = hn::MulAdd(polynomial, r, Splat(0.05592197584225006));
  polynomial = hn::MulAdd(polynomial, r, Splat(0.24022349038020416));
  polynomial = hn::MulAdd(polynomial, r, Splat(0.6931210452034274));
  polynomial = hn::MulAdd(polynomial, r, Splat(1.0));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(int_tag, shifted));
  const auto power = hn::Add(exponent, hn::Set(int_tag, 0x3F800000));
  return hn::Mul(polynomial, hn::BitCast(FloatTag(), power));
}

// Returns e^x, as exact as type T can represent.
template <typename T>
HWY_INLINE Floats ExpFor(Floats x) {
  if constexpr (std::is_same_v<T, float>) return Exp(x);
  return RoughPowerOfTwo(hn::Mul(x, Splat(1.44269504089)));
}

// Returns the logistic function, as exact as type T can represent.
template <typename T>
HWY_INLINE Floats Sigmoid(Floats x) {
  const Floats divisor = hn::Add(Splat(1), ExpFor<T>(hn::Neg(x)));
  if constexpr (std::is_same_v<T, float>) return hn::Div(Splat(1), divisor);
  const Floats guess = hn::ApproximateReciprocal(divisor);
  return hn::Mul(guess, hn::NegMulAdd(divisor, guess, Splat(2)));
}

}  // namespace megascale::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
