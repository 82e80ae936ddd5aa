#include "runtime/comm/fold.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "runtime/base/check.h"

namespace megascale::comm {
namespace {

// Elements added at a time: the sums stay in the first-level cache.
constexpr size_t kBlock = 2048;

// The conversions of tensor.h, inline so that loops over them vectorise.
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
void Fold(absl::Span<const std::byte* const> sources, size_t num_elements, Element* output) {
  Sum sums[kBlock];
  for (size_t start = 0; start < num_elements; start += kBlock) {
    const size_t count = std::min(kBlock, num_elements - start);
    const Element* first = reinterpret_cast<const Element*>(sources[0]) + start;
    for (size_t k = 0; k < count; ++k) sums[k] = Load(first[k]);
    for (size_t s = 1; s < sources.size(); ++s) {
      const Element* source = reinterpret_cast<const Element*>(sources[s]) + start;
      for (size_t k = 0; k < count; ++k) sums[k] += Load(source[k]);
    }
    for (size_t k = 0; k < count; ++k) Store(sums[k], output[start + k]);
  }
}

}  // namespace

void FoldSum(tensor::DType dtype, absl::Span<const std::byte* const> sources, size_t num_elements,
             std::byte* output) {
  MEGASCALE_CHECK(!sources.empty());
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

}  // namespace megascale::comm
