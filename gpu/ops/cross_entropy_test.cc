// The kernels of cross-entropy, whole and in parts, against the float64 reference.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gpu/ops/operators.h"
#include "gpu/ops/testing/block_launcher.h"
#include "gtest/gtest.h"
#include "runtime/ops/conformance.h"
#include "runtime/ops/testing/test_numbers.h"

namespace megascale::gpu {
namespace {

using ops::CrossEntropyArgs;
using ops::LogitStatisticsArgs;
using ops::Matrix;
using ops::Number;
using ops::TwinMatrix;
using ops::Twins;
using ops::TwinVector;
using ops::Vector;
using tensor::DType;

struct Shape {
  int64_t rows, cols;
};
// Around the packs of 4 and 8, and the threads' 512 and 1,024 columns of a round; the last one has
// the larger blocks.
constexpr Shape kShapes[] = {{0, 5},    {1, 1},   {3, 17},   {5, 7},    {8, 256},
                             {70, 100}, {9, 511}, {4, 1025}, {3, 2048}, {2, 8195}};

class CrossEntropyTest : public ::testing::TestWithParam<DType> {
 protected:
  std::unique_ptr<ops::Ops> exact_ = ops::MakeReferenceOps();
};
INSTANTIATE_TEST_SUITE_P(Gpu, CrossEntropyTest, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) {
                           return info.param == DType::kF32 ? "F32" : "BF16";
                         });

TEST_P(CrossEntropyTest, LossAndGradientMatch) {
  for (const auto& [rows, cols] : kShapes) {
    for (const int64_t padding : {0, 3, 8}) {
      for (const bool backward : {false, true}) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << cols << " padding " << padding);
        Twins twins(GetParam());
        const TwinMatrix logits = twins.Input(rows, cols, padding, 10);
        const Vector targets = twins.Tokens(rows, static_cast<int32_t>(cols));
        double exact_loss = 1, tested_loss = 1;  // added to, not overwritten
        exact_->CrossEntropy({logits.exact, targets, 0.125, backward, Number(&exact_loss)});
        BlockLauncher launcher;
        CrossEntropy(launcher, {logits.tested, targets, 0.125, backward, Number(&tested_loss)});
        EXPECT_NEAR(tested_loss, exact_loss, 1e-6 * exact_loss);
        twins.ExpectClose("CrossEntropy", logits);
      }
    }
  }
}

TEST_P(CrossEntropyTest, ALargeVocabularyMatches) {
  Twins twins(GetParam());
  constexpr int64_t kCols = 200'000;
  const TwinMatrix logits = twins.Input(2, kCols, 1, 10);
  const Vector targets = twins.Tokens(2, kCols);
  double exact_loss = 0, tested_loss = 0;
  exact_->CrossEntropy({logits.exact, targets, 1.0, true, Number(&exact_loss)});
  BlockLauncher launcher;
  CrossEntropy(launcher, {logits.tested, targets, 1.0, true, Number(&tested_loss)});
  EXPECT_NEAR(tested_loss, exact_loss, 1e-6 * exact_loss);
  twins.ExpectClose("CrossEntropy", logits);
}

// A row's columns in parts, as ranks hold them.
struct Parts {
  Parts(Twins& twins, int64_t rows, int64_t cols, int count)
      : logits(twins.Input(rows, cols, 3, 10)),
        targets(twins.Tokens(rows, static_cast<int32_t>(cols))),
        all(twins.FloatOutputVector(count * 3 * rows)),
        num_parts(count),
        part_cols(cols / count) {}

  TwinMatrix Logits(int part) const { return logits.Cols(part * part_cols, part_cols); }
  ops::VocabularyPart Vocabulary(int part) const {
    return {part * part_cols, part_cols * num_parts};
  }
  LogitStatisticsArgs Statistics(int part, const Matrix& mine, Vector statistics) const {
    statistics.size = 3 * targets.size;
    statistics.data = statistics.as<char>() + part * statistics.bytes();
    return {mine, targets, Vocabulary(part), statistics};
  }
  CrossEntropyArgs Loss(int part, bool backward, double* loss) const {
    return {Logits(part).tested, targets,          0.125,     backward,
            Number(loss),        Vocabulary(part), all.tested};
  }

  TwinMatrix logits;
  Vector targets;
  TwinVector all;
  int num_parts;
  int64_t part_cols;
};

TEST_P(CrossEntropyTest, PartsMatchTheWhole) {
  for (const auto& [rows, cols] : {Shape{0, 6}, {1, 6}, {3, 18}, {8, 258}, {70, 1002}}) {
    for (const int num_parts : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << cols << " in " << num_parts);
      Twins twins(GetParam());
      const Parts parts(twins, rows, cols, num_parts);
      BlockLauncher launcher;
      for (int part = 0; part < num_parts; ++part) {
        const TwinMatrix mine = parts.Logits(part);
        exact_->LogitStatistics(parts.Statistics(part, mine.exact, parts.all.exact));
        LogitStatistics(launcher, parts.Statistics(part, mine.tested, parts.all.tested));
      }
      twins.ExpectClose("CrossEntropy", parts.all);
      double exact_loss = 1;  // added to, not overwritten
      exact_->CrossEntropy({parts.logits.exact, parts.targets, 0.125, true, Number(&exact_loss)});
      for (int part = 0; part < num_parts; ++part) {
        double tested_loss = 1, no_loss = 1;
        CrossEntropy(launcher, parts.Loss(part, /*backward=*/false, &no_loss));
        CrossEntropy(launcher, parts.Loss(part, /*backward=*/true, &tested_loss));
        EXPECT_EQ(tested_loss, no_loss);
        EXPECT_NEAR(tested_loss, exact_loss, 1e-6 * exact_loss);
      }
      twins.ExpectClose("CrossEntropy", parts.logits);
    }
  }
}

TEST_P(CrossEntropyTest, LossesAreAddedInRowOrder) {
  Twins twins(GetParam());
  const TwinMatrix logits = twins.Input(45, 20, 0, 10);
  const Vector targets = twins.Tokens(45, 20);
  BlockLauncher launcher;
  const auto loss_of = [&](int64_t first, int64_t count, double loss) {
    Matrix rows = logits.tested;
    rows.data =
        rows.as<char>() + first * rows.stride * static_cast<int64_t>(tensor::SizeOf(rows.dtype));
    rows.rows = count;
    const Vector tokens = {targets.as<int32_t>() + first, DType::kI32, count};
    CrossEntropy(launcher, {rows, tokens, 1.0, false, Number(&loss)});
    return loss;
  };
  double one_by_one = 0.1;
  // Rows begin in a pack where they do in the whole matrix.
  for (int64_t row = 0; row < 45; row += 2) {
    one_by_one = loss_of(row, std::min<int64_t>(2, 45 - row), one_by_one);
  }
  EXPECT_EQ(loss_of(0, 45, 0.1), one_by_one);
}

TEST_P(CrossEntropyTest, NanAndInfinityShow) {
  for (const float bad : {std::nanf(""), INFINITY}) {
    for (const int64_t col : {0, 7, 39}) {
      Twins twins(GetParam());
      const TwinMatrix logits = twins.Input(1, 40);
      const Vector targets = twins.Tokens(1, 40);
      if (GetParam() == DType::kF32) {
        logits.tested.as<float>()[col] = bad;
      } else {
        logits.tested.as<tensor::BFloat16>()[col] = tensor::ToBFloat16(bad);
      }
      double loss = 0;
      BlockLauncher launcher;
      CrossEntropy(launcher, {logits.tested, targets, 1.0, true, Number(&loss)});
      EXPECT_TRUE(std::isnan(loss)) << bad << " at " << col;
      EXPECT_TRUE(std::isnan(ops::ReadElement(logits.tested, 0, 20)));
    }
  }
}

// Tokens that a mask rules out.
TEST_P(CrossEntropyTest, LogitsOfMinusInfinityHaveNoPower) {
  Twins twins(GetParam());
  const TwinMatrix logits = twins.Input(2, 3000, 0, 10);
  for (int64_t col = 0; col < 2990; ++col) {
    logits.exact.as<double>()[col] = -std::numeric_limits<double>::infinity();
    if (GetParam() == DType::kF32) {
      logits.tested.as<float>()[col] = -INFINITY;
    } else {
      logits.tested.as<tensor::BFloat16>()[col] = tensor::ToBFloat16(-INFINITY);
    }
  }
  std::vector<int32_t> tokens = {2995, 5};
  const Vector targets = {tokens.data(), DType::kI32, 2};
  double exact_loss = 0, tested_loss = 0;
  exact_->CrossEntropy({logits.exact, targets, 1.0, true, Number(&exact_loss)});
  BlockLauncher launcher;
  CrossEntropy(launcher, {logits.tested, targets, 1.0, true, Number(&tested_loss)});
  EXPECT_NEAR(tested_loss, exact_loss, 1e-6 * exact_loss);
  twins.ExpectClose("CrossEntropy", logits);
}

TEST_P(CrossEntropyTest, ATargetThatIsNoTokenGivesALossOfNan) {
  for (const int32_t target : {-1, 40, 1 << 30}) {
    Twins twins(GetParam());
    const Parts parts(twins, 1, 40, 2);
    parts.targets.as<int32_t>()[0] = target;
    double whole = 0, of_part = 0;
    BlockLauncher launcher;
    for (int part = 0; part < 2; ++part) {
      LogitStatistics(launcher,
                      parts.Statistics(part, parts.Logits(part).tested, parts.all.tested));
    }
    CrossEntropy(launcher, parts.Loss(0, /*backward=*/true, &of_part));
    EXPECT_TRUE(std::isnan(of_part)) << target;
    CrossEntropy(launcher, {parts.logits.tested, parts.targets, 1.0, true, Number(&whole)});
    EXPECT_TRUE(std::isnan(whole)) << target;
  }
}

// Returns the bits of loss and gradient, whole and in parts. `shift`: elements by which the memory
// of the logits is not aligned.
std::string BitsOf(DType dtype, uint64_t seed, int64_t shift) {
  Twins twins(dtype);
  const TwinMatrix wide = twins.Input(5, 1300 + shift, 7 - shift, 10);
  const TwinMatrix logits = wide.Cols(shift, 1300);
  Twins same(dtype);
  const TwinMatrix values = same.Input(5, 1300, 0, 10);
  for (int64_t row = 0; row < 5; ++row) {
    const auto element = tensor::SizeOf(dtype);
    std::memcpy(logits.tested.as<char>() + row * logits.tested.stride * element,
                values.tested.as<char>() + row * 1300 * element, 1300 * element);
  }
  const Vector targets = same.Tokens(5, 1300);
  double loss = 0, loss_of_part = 0;
  std::vector<float> statistics(15);
  const Vector all = {statistics.data(), DType::kF32, 15};
  BlockLauncher launcher(seed);
  LogitStatistics(launcher, {logits.tested, targets, {0, 1300}, all});
  CrossEntropy(launcher, {logits.tested, targets, 1, false, Number(&loss_of_part), {0, 1300}, all});
  CrossEntropy(launcher, {logits.tested, targets, 0.5, true, Number(&loss)});
  std::string bits(reinterpret_cast<char*>(&loss), sizeof(loss));
  bits.append(reinterpret_cast<char*>(&loss_of_part), sizeof(loss_of_part));
  for (int64_t row = 0; row < 5; ++row) {
    const auto element = tensor::SizeOf(dtype);
    bits.append(logits.tested.as<char>() + row * logits.tested.stride * element, 1300 * element);
  }
  return bits;
}

TEST_P(CrossEntropyTest, BitsDependOnNeitherTheOrderOfThreadsNorAddresses) {
  const std::string first = BitsOf(GetParam(), /*seed=*/1, /*shift=*/0);
  EXPECT_EQ(BitsOf(GetParam(), 100, 0), first);
  EXPECT_EQ(BitsOf(GetParam(), 2000, 0), first);
  EXPECT_EQ(BitsOf(GetParam(), 1, /*shift=*/1), first);
}

TEST_P(CrossEntropyTest, EachBarrierIsNeeded) {
  Twins twins(GetParam());
  const Parts parts(twins, 2, 1200, 1);
  double loss = 0;
  ExpectEachBarrierIsNeeded([&](Launcher& launcher) {
    CrossEntropy(launcher, {parts.logits.tested, parts.targets, 1, true, Number(&loss)});
  });
  ExpectEachBarrierIsNeeded([&](Launcher& launcher) {
    LogitStatistics(launcher, parts.Statistics(0, parts.logits.tested, parts.all.tested));
  });
}

}  // namespace
}  // namespace megascale::gpu
