// The kernels that make one number of many, against the float64 reference.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "gpu/ops/operators.h"
#include "gpu/ops/testing/block_launcher.h"
#include "gtest/gtest.h"
#include "runtime/ops/conformance.h"
#include "runtime/ops/testing/test_numbers.h"

namespace megascale::gpu {
namespace {

using ops::Matrix;
using ops::Number;
using ops::Numbers;
using ops::TwinMatrix;
using ops::Twins;
using ops::TwinVector;
using ops::Vector;
using tensor::DType;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Vector Part(const Vector& x, int64_t first, int64_t size) {
  return {x.as<char>() + first * static_cast<int64_t>(tensor::SizeOf(x.dtype)), x.dtype, size};
}

TEST(NumbersTest, SumOfSquaresMatches) {
  const std::unique_ptr<ops::Ops> exact_ops = ops::MakeReferenceOps();
  Twins twins(DType::kF32);
  const TwinVector all = twins.FloatVector(100'003);
  // From one block on: 16,384 elements; of a second one, in which few threads have any.
  for (const int64_t size : {0, 1, 3, 4, 31, 1024, 1025, 16'384, 16'385, 100'000}) {
    for (const int64_t first : {0, 3}) {
      SCOPED_TRACE(::testing::Message() << size << " from " << first);
      double exact = 0.5, tested = 0.5;  // added to, not overwritten
      exact_ops->AddSumOfSquares(Part(all.exact, first, size), Number(&exact));
      BlockLauncher launcher;
      AddSumOfSquares(launcher, Part(all.tested, first, size), Number(&tested));
      EXPECT_NEAR(tested, exact, 1e-12 * exact);
    }
  }
}

TEST(NumbersTest, BitsOfASumOfSquaresDependOnNeitherTheOrderOfThreadsNorAddresses) {
  for (const int64_t size : {1001, 40'001}) {
    Twins twins(DType::kF32);
    const Vector x = twins.FloatVector(size + 1).tested;
    const auto sum = [&](uint64_t seed, int64_t first) {
      double total = 0;
      BlockLauncher launcher(seed);
      AddSumOfSquares(launcher, Part(x, first, size), Number(&total));
      return total;
    };
    const double expected = sum(1, 0);
    EXPECT_EQ(sum(100, 0), expected);
    EXPECT_EQ(sum(2000, 0), expected);
    std::memmove(x.as<float>() + 1, x.as<float>(), static_cast<size_t>(size) * sizeof(float));
    EXPECT_EQ(sum(1, 1), expected);
  }
}

TEST(NumbersTest, ASumOfSquaresOfInfinityOrNanShows) {
  for (const float bad : {INFINITY, -INFINITY, std::nanf("")}) {
    std::vector<float> x(20'000, 1);
    x[19'999] = bad;
    double total = 0;
    BlockLauncher launcher;
    AddSumOfSquares(launcher, {x.data(), DType::kF32, 20'000}, Number(&total));
    EXPECT_FALSE(std::isfinite(total));
  }
}

TEST(NumbersTest, TotalsAreAddedOneAfterTheOther) {
  for (const size_t size : {0, 1, 2, 31, 32, 33, 64, 1000}) {
    Twins twins(DType::kF32);
    std::vector<double> x;
    while (x.size() < size) x.push_back(twins.Random() * std::exp2(10 * twins.Random()));
    double expected = 0.1, total = 0.1;
    for (const double value : x) expected += value;
    BlockLauncher launcher;
    AddTotal(launcher, Numbers(&x), Number(&total));
    EXPECT_EQ(total, expected) << size;
  }
}

void Write(const Matrix& x, int64_t row, int64_t col, double value) {
  const int64_t i = row * x.stride + col;
  if (x.dtype == DType::kF64) x.as<double>()[i] = value;
  if (x.dtype == DType::kF32) x.as<float>()[i] = static_cast<float>(value);
  if (x.dtype == DType::kBF16) {
    x.as<tensor::BFloat16>()[i] = tensor::ToBFloat16(static_cast<float>(value));
  }
}

class FirstNotFiniteTest : public ::testing::TestWithParam<DType> {
 protected:
  // Numbers of the type; rows lie `padding` elements further apart than they are long.
  Matrix Finite(int64_t rows, int64_t cols, int64_t padding) {
    const TwinMatrix twin = twins_.Input(rows, cols, padding, 1e30);
    return GetParam() == DType::kF64 ? twin.exact : twin.tested;
  }
  double First(const Matrix& x, uint64_t seed = 1) {
    double found = 5;
    BlockLauncher launcher(seed);
    FirstNotFinite(launcher, x, Number(&found));
    return found;
  }

  Twins twins_{GetParam() == DType::kBF16 ? DType::kBF16 : DType::kF32};
};
INSTANTIATE_TEST_SUITE_P(Gpu, FirstNotFiniteTest,
                         ::testing::Values(DType::kF64, DType::kF32, DType::kBF16));

struct MatrixShape {
  int64_t rows, cols, padding;
};
constexpr MatrixShape kMatrixShapes[] = {{0, 4, 0},  {4, 0, 1},      {1, 1, 0},   {7, 33, 3},
                                         {5, 16, 8}, {1, 70'000, 0}, {1500, 9, 1}};

TEST_P(FirstNotFiniteTest, MatricesOfFiniteNumbersGiveZero) {
  for (const auto& [rows, cols, padding] : kMatrixShapes) {
    EXPECT_EQ(First(Finite(rows, cols, padding)), 0) << rows << " x " << cols;
  }
}

TEST_P(FirstNotFiniteTest, TheFirstInRowMajorOrderIsFound) {
  for (const auto& [rows, cols, padding] : kMatrixShapes) {
    if (rows * cols == 0) continue;
    for (const double where : {0.0, 0.3, 0.97, 1.0}) {
      const Matrix x = Finite(rows, cols, padding);
      const auto first = static_cast<int64_t>(where * static_cast<double>(rows * cols - 1));
      SCOPED_TRACE(::testing::Message() << rows << " x " << cols << " at " << first);
      for (int64_t i = first + 1; i < rows * cols; i += 1 + i / 3) {
        Write(x, i / cols, i % cols, kInfinity);
      }
      Write(x, first / cols, first % cols, -kInfinity);
      for (const uint64_t seed : {1, 100, 2000}) EXPECT_EQ(First(x, seed), -kInfinity);
      Write(x, first / cols, first % cols, std::nan(""));
      EXPECT_TRUE(std::isnan(First(x)));
    }
  }
}

TEST_P(FirstNotFiniteTest, WhatLiesBetweenRowsDoesNotCount) {
  const Matrix x = Finite(6, 20, 0);
  for (int64_t row = 0; row < 6; ++row) Write(x, row, 19, kInfinity);
  EXPECT_EQ(First({x.data, x.dtype, 6, 19, 20}), 0);
}

TEST(NumbersTest, EachBarrierIsNeeded) {
  Twins twins(DType::kF32);
  const Vector x = twins.FloatVector(40'000).tested;
  double number = 0;
  ExpectEachBarrierIsNeeded(
      [&](Launcher& launcher) { AddSumOfSquares(launcher, x, Number(&number)); });
  ExpectEachBarrierIsNeeded([&](Launcher& launcher) {
    FirstNotFinite(launcher, {x.data, x.dtype, 1, x.size, x.size}, Number(&number));
  });
}

}  // namespace
}  // namespace megascale::gpu
