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
// Sums that wait for their right half, at most: one for each level of a tree of kSourcesMax.
constexpr size_t kLevels = 20;

// Walks the tree over `num_sources` as its sums become complete, from the left: `begin` begins a
// sum with a source and `add` adds the next one to it; `wait` lays the sum aside on a level, and
// `join` adds it to the right of that level's.
template <typename Begin, typename Add, typename Join, typename Wait>
HWY_INLINE void WalkTree(size_t num_sources, const Begin& begin, const Add& add, const Join& join,
                         const Wait& wait) {
  size_t level = 0;  // as many sums wait
  for (size_t s = 0; s < num_sources; s += 2) {
    begin(s);
    if (s + 1 < num_sources) add(s + 1);
    const bool is_last = s + 2 >= num_sources;
    for (size_t pairs = s / 2; level > 0 && (is_last || pairs % 2 == 1); pairs /= 2) join(--level);
    if (!is_last) wait(level++);
  }
}

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
  Sum waiting[kLevels][kBlock];
  const auto source = [&](size_t s)
                          HWY_ATTR { return reinterpret_cast<const Element*>(sources[s]) + start; };
  WalkTree(
      sources.size(),
      [&](size_t s) HWY_ATTR {
        for (size_t k = 0; k < count; ++k) sums[k] = Load(source(s)[k]);
      },
      [&](size_t s) HWY_ATTR {
        for (size_t k = 0; k < count; ++k) sums[k] += Load(source(s)[k]);
      },
      [&](size_t level) HWY_ATTR {
        for (size_t k = 0; k < count; ++k) sums[k] = waiting[level][k] + sums[k];
      },
      [&](size_t level) HWY_ATTR {
        for (size_t k = 0; k < count; ++k) waiting[level][k] = sums[k];
      });
  for (size_t k = 0; k < count; ++k) Store(sums[k], output[start + k]);
}

// Four vectors in registers.
template <class Tag>
struct Four {
  using Element = hn::TFromD<Tag>;
  HWY_INLINE void Clear() { a = b = c = d = hn::Zero(Tag()); }
  HWY_INLINE void Load(const Element* from) {
    a = hn::LoadU(Tag(), from);
    b = hn::LoadU(Tag(), from + hn::Lanes(Tag()));
    c = hn::LoadU(Tag(), from + 2 * hn::Lanes(Tag()));
    d = hn::LoadU(Tag(), from + 3 * hn::Lanes(Tag()));
  }
  HWY_INLINE void Store(Element* to) const {
    hn::StoreU(a, Tag(), to);
    hn::StoreU(b, Tag(), to + hn::Lanes(Tag()));
    hn::StoreU(c, Tag(), to + 2 * hn::Lanes(Tag()));
    hn::StoreU(d, Tag(), to + 3 * hn::Lanes(Tag()));
  }
  // Adds `right` to the right of these.
  HWY_INLINE void Add(const Four& right) {
    a = hn::Add(a, right.a);
    b = hn::Add(b, right.b);
    c = hn::Add(c, right.c);
    d = hn::Add(d, right.d);
  }
  hn::Vec<Tag> a, b, c, d;
};

// Adds elements that need no conversion in registers. Returns how many elements were done.
template <typename Element>
HWY_INLINE size_t FoldVectors(absl::Span<const std::byte* const> sources, size_t num_elements,
                              Element* output) {
  using Tag = hn::ScalableTag<Element>;
  const size_t stride = 4 * hn::Lanes(Tag());
  Element waiting[kLevels][4 * HWY_MAX_BYTES / sizeof(Element)];
  Four<Tag> sum, other, first;  // `first` waits on level 0
  sum.Clear();
  other.Clear();
  first.Clear();
  size_t start = 0;
  const auto source = [&](size_t s)
                          HWY_ATTR { return reinterpret_cast<const Element*>(sources[s]) + start; };
  for (; start + stride <= num_elements; start += stride) {
    WalkTree(
        sources.size(), [&](size_t s) HWY_ATTR { sum.Load(source(s)); },
        [&](size_t s) HWY_ATTR {
          other.Load(source(s));
          sum.Add(other);
        },
        [&](size_t level) HWY_ATTR {
          if (level == 0) {
            other = first;
          } else {
            other.Load(waiting[level]);
          }
          other.Add(sum);
          sum = other;
        },
        [&](size_t level) HWY_ATTR {
          if (level > 0) {
            sum.Store(waiting[level]);
          } else {
            first = sum;
          }
        });
    sum.Store(output + start);
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

constexpr size_t kSourcesMax = size_t{1} << 20;

void FoldSum(tensor::DType dtype, absl::Span<const std::byte* const> sources, size_t num_elements,
             std::byte* output) {
  MEGASCALE_CHECK(!sources.empty() && sources.size() <= kSourcesMax);
  HWY_DYNAMIC_DISPATCH(FoldAny)(dtype, sources, num_elements, output);
}

}  // namespace megascale::comm
#endif
