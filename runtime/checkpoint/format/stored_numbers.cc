#include "runtime/checkpoint/format/stored_numbers.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace megascale::checkpoint {
namespace {

// Half precision: a sign, 5 bits of exponent with a bias of 15, 10 bits of fraction.
constexpr int kHalfFractionBits = 10;
constexpr int kFloatFractionBits = 23;
constexpr int kDropped = kFloatFractionBits - kHalfFractionBits;
constexpr uint32_t kRebias = 127 - 15;

float BFloat16ToFloat(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);  // the upper half of a float
}

// A value that is no number stays one.
uint16_t FloatToBFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  constexpr uint32_t kInfinity = 0x7f800000;
  if ((bits & 0x7fffffff) > kInfinity) return static_cast<uint16_t>(bits >> 16 | 1);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename Stored, typename Number, typename Convert>
absl::Status ReadAs(absl::Span<const char> bytes, absl::Span<Number> out, const Convert& convert) {
  MEGASCALE_CHECK(bytes.size() == out.size() * sizeof(Stored));
  for (size_t i = 0; i < out.size(); ++i) {
    Stored value;
    std::memcpy(&value, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    out[i] = static_cast<Number>(convert(value));
  }
  return absl::OkStatus();
}

template <typename Stored, typename Convert>
absl::Status WriteAs(absl::Span<const float> numbers, absl::Span<char> out,
                     const Convert& convert) {
  MEGASCALE_CHECK(out.size() == numbers.size() * sizeof(Stored));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const Stored value = convert(numbers[i]);
    std::memcpy(out.data() + i * sizeof(Stored), &value, sizeof(Stored));
  }
  return absl::OkStatus();
}

// `exponent`: the bits of the exponent, all of which are set in numbers that are not finite.
template <typename Stored>
int64_t FindNotFinite(absl::Span<const char> bytes, Stored exponent) {
  const auto count = static_cast<int64_t>(bytes.size() / sizeof(Stored));
  for (int64_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, bytes.data() + static_cast<size_t>(i) * sizeof(Stored), sizeof(Stored));
    if ((value & exponent) == exponent) return i;
  }
  return -1;
}

absl::Status NoNumbers(absl::string_view dtype) {
  return absl::InvalidArgumentError(
      absl::StrCat("stored as ", dtype, ", expected F32, F64, BF16 or F16"));
}

template <typename Number>
absl::Status Convert(absl::string_view dtype, absl::Span<const char> bytes,
                     absl::Span<Number> out) {
  if (dtype == "F32") return ReadAs<float>(bytes, out, [](float value) { return value; });
  if (dtype == "F64") return ReadAs<double>(bytes, out, [](double value) { return value; });
  if (dtype == "BF16") return ReadAs<uint16_t>(bytes, out, BFloat16ToFloat);
  if (dtype == "F16") return ReadAs<uint16_t>(bytes, out, HalfToFloat);
  return NoNumbers(dtype);
}

}  // namespace

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> kHalfFractionBits & 0x1f;
  const uint32_t fraction = half & 0x3ff;
  if (exponent == 0) {  // zero, or below the least normal number: fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wide_exponent = exponent == 0x1f ? 0xff : exponent + kRebias;
  return std::bit_cast<float>(sign | wide_exponent << kFloatFractionBits | fraction << kDropped);
}

uint16_t FloatToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  constexpr uint16_t kInfinity = 0x7c00;
  if (magnitude > 0x7f800000) {  // no number: keeps the upper bits, and stays none
    return static_cast<uint16_t>(sign | kInfinity | 0x200 | (magnitude >> kDropped & 0x3ff));
  }
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | kInfinity);  // 65520 and more
  if (magnitude < 0x38800000) {  // below 2^-14, the least normal number
    // Adding 1/2 leaves the fraction, rounded to multiples of 2^-24, in the lowest bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) & 0x7fff));
  }
  const uint32_t odd = magnitude >> kDropped & 1;
  const uint32_t rounded = magnitude + 0xfff + odd - (kRebias << kFloatFractionBits);
  return static_cast<uint16_t>(sign | rounded >> kDropped);
}

absl::Status ToNumbers(absl::string_view dtype, absl::Span<const char> bytes,
                       absl::Span<float> out) {
  return Convert(dtype, bytes, out);
}

absl::Status ToNumbers(absl::string_view dtype, absl::Span<const char> bytes,
                       absl::Span<double> out) {
  return Convert(dtype, bytes, out);
}

absl::Status FromNumbers(absl::string_view dtype, absl::Span<const float> numbers,
                         absl::Span<char> out) {
  if (dtype == "F32") return WriteAs<float>(numbers, out, [](float value) { return value; });
  if (dtype == "F64") return WriteAs<double>(numbers, out, [](float value) { return value; });
  if (dtype == "BF16") return WriteAs<uint16_t>(numbers, out, FloatToBFloat16);
  if (dtype == "F16") return WriteAs<uint16_t>(numbers, out, FloatToHalf);
  return NoNumbers(dtype);
}

int64_t FirstNotFinite(absl::string_view dtype, absl::Span<const char> bytes) {
  if (dtype == "F32") return FindNotFinite<uint32_t>(bytes, 0x7f800000);
  if (dtype == "F64") return FindNotFinite<uint64_t>(bytes, 0x7ff0000000000000);
  if (dtype == "BF16") return FindNotFinite<uint16_t>(bytes, 0x7f80);
  if (dtype == "F16") return FindNotFinite<uint16_t>(bytes, 0x7c00);
  return -1;
}

}  // namespace megascale::checkpoint
