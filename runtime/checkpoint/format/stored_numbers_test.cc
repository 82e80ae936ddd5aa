#include "runtime/checkpoint/format/stored_numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace megascale::checkpoint {
namespace {

TEST(StoredNumbers, EveryHalfComesBackFromAFloat) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = HalfToFloat(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value)))) << bits;
    } else {
      ASSERT_EQ(FloatToHalf(value), half) << bits;
    }
  }
}

TEST(StoredNumbers, HalvesHaveTheirValues) {
  EXPECT_EQ(HalfToFloat(0x3c00), 1.0F);
  EXPECT_EQ(HalfToFloat(0xc000), -2.0F);
  EXPECT_EQ(HalfToFloat(0x7bff), 65504.0F);
  EXPECT_EQ(HalfToFloat(0x0001), 0x1p-24F);
  EXPECT_EQ(HalfToFloat(0x0400), 0x1p-14F);
  EXPECT_EQ(HalfToFloat(0x7c00), std::numeric_limits<float>::infinity());
}

TEST(StoredNumbers, FloatsRoundToTheNearestHalfAndTiesToEven) {
  for (uint32_t bits = 0; bits + 1 < 0x7c00; ++bits) {
    const auto below = static_cast<uint16_t>(bits), above = static_cast<uint16_t>(bits + 1);
    const float low = HalfToFloat(below), high = HalfToFloat(above);
    const float middle = (low + high) / 2;  // exact
    ASSERT_EQ(FloatToHalf(middle), bits % 2 == 0 ? below : above) << bits;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0F)), below) << bits;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, high)), above) << bits;
  }
  EXPECT_EQ(FloatToHalf(65519.0F), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0F), 0x7c00);
  EXPECT_EQ(FloatToHalf(-1e30F), 0xfc00);
}

TEST(StoredNumbers, BFloat16sRoundToTheNearest) {
  const std::vector<float> numbers = {1.0F, 1.00390625F, 1.01171875F, -3.0F};
  std::vector<char> bytes(2 * numbers.size());
  ASSERT_TRUE(FromNumbers("BF16", numbers, absl::MakeSpan(bytes)).ok());
  std::vector<float> read(numbers.size());
  ASSERT_TRUE(ToNumbers("BF16", bytes, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, (std::vector<float>{1.0F, 1.0F, 1.015625F, -3.0F}));
}

TEST(StoredNumbers, OtherTypesAreRefused) {
  std::vector<char> bytes(4);
  std::vector<float> numbers(4);
  EXPECT_EQ(ToNumbers("I8", bytes, absl::MakeSpan(numbers)).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace megascale::checkpoint
