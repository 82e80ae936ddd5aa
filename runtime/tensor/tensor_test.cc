#include "runtime/tensor/tensor.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "runtime/tensor/arena.h"

namespace megascale::tensor {
namespace {

TEST(BFloat16, RoundsToNearestEven) {
  EXPECT_EQ(ToFloat(ToBFloat16(1.0f)), 1.0f);
  EXPECT_EQ(ToFloat(ToBFloat16(-0.0f)), -0.0f);
  // One unit in the last place of 1.0 is 2^-7: halves go to the even neighbour.
  EXPECT_EQ(ToFloat(ToBFloat16(1.0f + 0x1p-8f)), 1.0f);
  EXPECT_EQ(ToFloat(ToBFloat16(1.0f + 3 * 0x1p-8f)), 1.0f + 4 * 0x1p-8f);
  EXPECT_EQ(ToFloat(ToBFloat16(1.0f + 0x1.02p-8f)), 1.0f + 0x1p-7f);
}

TEST(BFloat16, KeepsInfinityAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ToFloat(ToBFloat16(infinity)), infinity);
  EXPECT_EQ(ToFloat(ToBFloat16(std::numeric_limits<float>::max())), infinity);
  for (uint32_t bits : {0x7F800001u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    float nan;
    std::memcpy(&nan, &bits, sizeof(nan));
    EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(nan)))) << std::hex << bits;
  }
}

TEST(BFloat16, EveryValueSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 value{static_cast<uint16_t>(bits)};
    if (std::isnan(ToFloat(value))) continue;
    ASSERT_EQ(ToBFloat16(ToFloat(value)).bits, value.bits);
  }
}

TEST(DType, HasTheNamesOfSafetensors) {
  EXPECT_EQ(Name(DType::kF64), "F64");
  EXPECT_EQ(Name(DType::kF32), "F32");
  EXPECT_EQ(Name(DType::kBF16), "BF16");
  EXPECT_EQ(Name(DType::kI32), "I32");
}

TEST(Arena, HandsOutAlignedZeroedMemory) {
  const size_t bytes = Arena::BytesFor(DType::kBF16, 3) + Arena::BytesFor(DType::kF32, 12);
  auto arena = Arena::Create(bytes);
  ASSERT_TRUE(arena.ok()) << arena.status();
  const Vector vector = arena->Allocate(DType::kBF16, 3);
  const Matrix matrix = arena->AllocateMatrix(DType::kF32, 3, 4);
  EXPECT_EQ(vector.size, 3);
  EXPECT_EQ(matrix.rows, 3);
  EXPECT_EQ(matrix.cols, 4);
  EXPECT_EQ(matrix.stride, 4);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(vector.data) % Arena::kAlignment, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(matrix.data) % Arena::kAlignment, 0u);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(matrix.as<float>()[i], 0.0f);
  const char* const end = static_cast<const char*>(arena->data()) + arena->capacity_bytes();
  const char* const end_of_matrix =
      static_cast<const char*>(matrix.data) + Arena::BytesFor(DType::kF32, 12);
  EXPECT_EQ(static_cast<const void*>(end_of_matrix), end) << "BytesFor counts all that is taken";
}

TEST(Arena, KeepsViewsValidWhenMoved) {
  auto created = Arena::Create(64);
  ASSERT_TRUE(created.ok()) << created.status();
  const Vector vector = created->Allocate(DType::kF64, 8);
  Arena arena = *std::move(created);
  vector.as<double>()[7] = 5;
  EXPECT_EQ(vector.as<double>()[7], 5);
  EXPECT_EQ(arena.data(), vector.data);
  EXPECT_DEATH(arena.Allocate(DType::kF64, 1), "arena has room") << "the capacity is used up";
}

TEST(Arena, EmptyArenaGivesEmptyVectors) {
  auto arena = Arena::Create(0);
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(arena->Allocate(DType::kF32, 0).size, 0);
}

TEST(Arena, ReportsMoreThanTheMachineHas) {
  EXPECT_EQ(Arena::Create(size_t{1} << 60).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(ArenaDeathTest, DiesWhenItIsExhausted) {
  auto arena = Arena::Create(64);
  ASSERT_TRUE(arena.ok()) << arena.status();
  arena->Allocate(DType::kF32, 16);
  EXPECT_DEATH(arena->Allocate(DType::kF32, 1), "64 of 64 are used");
}

// A device's pointer is not host memory: only memory with a C++ type, or another view, makes a
// view.
static_assert(!std::is_constructible_v<HostVector, void*, DType, int64_t>);
static_assert(!std::is_constructible_v<HostVector, float*, DType, int64_t>);
static_assert(!std::is_constructible_v<HostVector, Vector> && !std::is_aggregate_v<HostVector>);

TEST(HostVectorTest, ViewsElementsBytesAndPartsOfAView) {
  std::vector<float> numbers = {1, 2, 3, 4, 5};
  const auto all = HostVector::Of(absl::MakeSpan(numbers));
  EXPECT_EQ(all.dtype(), DType::kF32);
  EXPECT_EQ(all.size(), 5);
  EXPECT_EQ(all.bytes(), 20);
  const HostVector part = all.Slice(1, 3);
  EXPECT_EQ(part.size(), 3);
  EXPECT_EQ(part.as<float>()[2], 4);
  const auto halves = HostVector::OfBytes(absl::MakeSpan(part.as<std::byte>(), 11), DType::kBF16);
  EXPECT_EQ(halves.size(), 5) << "whole elements alone";
  EXPECT_EQ(halves.data(), &numbers[1]);
  EXPECT_FALSE(HostVector());
  EXPECT_EQ(HostVector::OfBytes(absl::Span<double>(), DType::kF64).dtype(), DType::kF64);
}

}  // namespace
}  // namespace megascale::tensor
