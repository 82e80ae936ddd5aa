#include "runtime/comm/fold.h"

// Reads all sources side by side, so that the machine fetches several at once. It adds element by
// element, so vectors of every width give the same bits.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/comm/fold.cc"
#include "runtime/base/vector_targets.h"
// Highway prescribes the order of these includes.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on
#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "runtime/base/check.h"

HWY_BEFORE_NAMESPACE();
namespace megascale::comm::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Elements added at a time in loops that the compiler vectorises.
constexpr size_t kBlock = 64;

// The conversions of tensor.h, inline so that the compiler vectorises loops over them.
inline float Load(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
inline float Load(float value) { return value; }
inline double Load(double value) { return value; }

inline void Store(float value, uint16_t& out) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  out = static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40 : rounded);
}
inline void Store(float value, float& out) { out = value; }
inline void Store(double value, double& out) { out = value; }

template <typename Element, typename Sum>
HWY_INLINE void FoldBlock(absl::Span<const std::byte* const> sources, size_t start, size_t count,
                          Element* output) {
  Sum sums[kBlock];
  const Element* first = reinterpret_cast<const Element*>(sources.front()) + start;
  for (size_t k = 0; k < count; ++k) sums[k] = Load(first[k]);
  for (size_t s = 1; s < sources.size(); ++s) {
    const Element* source = reinterpret_cast<const Element*>(sources[s]) + start;
    for (size_t k = 0; k < count; ++k) sums[k] += Load(source[k]);
  }
  for (size_t k = 0; k < count; ++k) Store(sums[k], output[start + k]);
}

// Adds elements that need no conversion in four registers. Returns how many elements were done.
template <typename Element>
HWY_INLINE size_t FoldVectors(absl::Span<const std::byte* const> sources, size_t num_elements,
                              Element* output) {
  const hn::ScalableTag<Element> tag;
  const size_t lanes = hn::Lanes(tag);
  const size_t stride = 4 * lanes;
  size_t start = 0;
  for (; start + stride <= num_elements; start += stride) {
    const Element* from = reinterpret_cast<const Element*>(sources.front()) + start;
    auto a = hn::LoadU(tag, from);
    auto b = hn::LoadU(tag, from + lanes);
    auto c = hn::LoadU(tag, from + 2 * lanes);
    auto d = hn::LoadU(tag, from + 3 * lanes);
    for (size_t s = 1; s < sources.size(); ++s) {
      from = reinterpret_cast<const Element*>(sources[s]) + start;
      a = hn::Add(a, hn::LoadU(tag, from));
      b = hn::Add(b, hn::LoadU(tag, from + lanes));
      c = hn::Add(c, hn::LoadU(tag, from + 2 * lanes));
      d = hn::Add(d, hn::LoadU(tag, from + 3 * lanes));
    }
    hn::StoreU(a, tag, output + start);
    hn::StoreU(b, tag, output + start + lanes);
    hn::StoreU(c, tag, output + start + 2 * lanes);
    hn::StoreU(d, tag, output + start + 3 * lanes);
  }
  return start;
}

template <typename Element, typename Sum>
void Fold(absl::Span<const std::byte* const> sources, size_t num_elements, Element* output) {
  size_t start = 0;
  if constexpr (std::is_same_v<Element, Sum>) start = FoldVectors(sources, num_elements, output);
  for (; start + kBlock <= num_elements; start += kBlock) {
    FoldBlock<Element, Sum>(sources, start, kBlock, output);
  }
  FoldBlock<Element, Sum>(sources, start, num_elements - start, output);
}

void FoldAny(tensor::DType dtype, absl::Span<const std::byte* const> sources, size_t num_elements,
             std::byte* output) {
  switch (dtype) {
    case tensor::DType::kF32:
      return Fold<float, float>(sources, num_elements, reinterpret_cast<float*>(output));
    case tensor::DType::kF64:
      return Fold<double, double>(sources, num_elements, reinterpret_cast<double*>(output));
    case tensor::DType::kBF16:
      return Fold<uint16_t, float>(sources, num_elements, reinterpret_cast<uint16_t*>(output));
    case tensor::DType::kI32:
      break;
  }
  MEGASCALE_CHECK_MSG(false, "sums are of F32, F64 or BF16");
}

}  // namespace megascale::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megascale::comm {

HWY_EXPORT(FoldAny);

void FoldSum(tensor::DType dtype, absl::Span<const std::byte* const> sources, size_t num_elements,
             std::byte* output) {
  MEGASCALE_CHECK(!sources.empty());
  HWY_DYNAMIC_DISPATCH(FoldAny)(dtype, sources, num_elements, output);
}

}  // namespace megascale::comm
#endif
