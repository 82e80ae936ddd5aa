// Every part on every device, whole and with a byte changed behind its back.
#include "runtime/device/check/device_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/testing/test_devices.h"

namespace megascale::device::check {
namespace {

using device::TestDevice;
using tensor::DType;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Flips bits of one byte, as a broken memory cell does.
Tamper FlipAt(size_t offset, unsigned char bits) {
  return [=](void* data, size_t) { static_cast<unsigned char*>(data)[offset] ^= bits; };
}

MemoryOptions SmallMemory(Tamper tamper = {}) {
  return {.size_bytes = 10'000,  // not a multiple of a piece
          .piece_bytes = 4096,
          .budget = absl::ZeroDuration(),
          .tamper = std::move(tamper)};
}
CopyOptions SmallCopies(Direction direction, Tamper tamper = {}) {
  return {.direction = direction,
          .size_bytes = 4096,
          .budget = absl::ZeroDuration(),
          .tamper = std::move(tamper)};
}
ProductOptions SmallProducts(DType compute) {
  return {.compute = compute, .size = 48, .budget = absl::ZeroDuration()};
}

class DeviceCheckTest : public ::testing::TestWithParam<TestDevice> {
 protected:
  const std::unique_ptr<device::Device> device_ = GetParam().make(3);
};

INSTANTIATE_TEST_SUITE_P(All, DeviceCheckTest, ::testing::ValuesIn(device::AllDevices()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DeviceCheckTest, ADeviceInOrderPassesEveryPartWithItsRates) {
  CheckOptions options;
  options.memory = SmallMemory();
  options.copies = SmallCopies(Direction::kToDevice);
  options.products = SmallProducts(DType::kF32);
  std::vector<std::string> parts;
  const std::vector<NamedResult> results = CheckDevice(
      device_.get(), options, [&](absl::string_view part) { parts.emplace_back(part); });
  EXPECT_THAT(parts, ElementsAre("memory", "copies to the device", "copies to the host",
                                 "products in fp32", "products in bf16"));
  ASSERT_EQ(results.size(), parts.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const PartResult& result = results[i].result;
    EXPECT_EQ(results[i].part, parts[i]);
    EXPECT_THAT(result.failure, IsEmpty()) << parts[i];
    EXPECT_THAT(result.note, IsEmpty()) << parts[i];
    EXPECT_GT(i < 3 ? result.bytes_per_second : result.flops_per_second, 0) << parts[i];
  }
  EXPECT_EQ(device_->used_bytes(), 0);
}

TEST_P(DeviceCheckTest, AFlippedBitOfMemoryIsFoundWithItsPlace) {
  int pieces = 0;
  const Tamper tamper = [&](void* data, size_t) {
    if (++pieces == 2) static_cast<unsigned char*>(data)[17] ^= 4;
  };
  EXPECT_THAT(CheckMemory(device_.get(), SmallMemory(tamper)).failure,
              HasSubstr("device memory read back: 1 wrong byte, the first at byte 4113: 0x"));
}

TEST_P(DeviceCheckTest, EveryBitOfMemoryIsWrittenBothWays) {
  std::vector<std::vector<unsigned char>> rounds(2);
  size_t pieces = 0;
  const Tamper look = [&](void* data, size_t size) {
    const auto* const bytes = static_cast<const unsigned char*>(data);
    std::vector<unsigned char>& round = rounds.at(pieces++ / 3);
    round.insert(round.end(), bytes, bytes + size);
  };
  EXPECT_THAT(CheckMemory(device_.get(), SmallMemory(look)).failure, IsEmpty());
  ASSERT_EQ(rounds[0].size(), 10'000u);
  ASSERT_EQ(rounds[1].size(), 10'000u);
  for (size_t i = 0; i < rounds[0].size(); ++i) ASSERT_EQ(rounds[0][i] ^ rounds[1][i], 0xff) << i;
}

TEST_P(DeviceCheckTest, AByteThatACopyChangesIsFoundInBothDirections) {
  for (const Direction direction : {Direction::kToDevice, Direction::kToHost}) {
    EXPECT_THAT(CheckCopies(device_.get(), SmallCopies(direction, FlipAt(9, 1))).failure,
                HasSubstr("copied to the device and back: 1 wrong byte, the first at byte 9: 0x"));
  }
}

TEST_P(DeviceCheckTest, AWrongElementOfAnExactProductIsNamed) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    ProductOptions options = SmallProducts(compute);
    // The exponent of the element in row 3 and column 5.
    options.tamper = FlipAt((3 * 48 + 5) * 4 + 3, 1);
    EXPECT_THAT(CheckProducts(device_.get(), options).failure,
                AllOf(HasSubstr(tensor::Name(compute)), HasSubstr("in row 3, column 5, expected")));
  }
}

TEST_P(DeviceCheckTest, AProductThatHasOtherBitsTheNextTimeIsFound) {
  ProductOptions options = SmallProducts(DType::kF32);
  options.tamper_repeated = FlipAt((2 * 48 + 1) * 4, 1);
  EXPECT_THAT(CheckProducts(device_.get(), options).failure,
              AllOf(HasSubstr("has other bits the next time"), HasSubstr("in row 2, column 1")));
}

}  // namespace
}  // namespace megascale::device::check
