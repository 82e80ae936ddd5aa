// The kernels of embeddings against the float64 reference.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gpu/ops/operators.h"
#include "gpu/ops/testing/block_launcher.h"
#include "gtest/gtest.h"
#include "runtime/ops/conformance.h"

namespace megascale::gpu {
namespace {

using ops::EmbeddingArgs;
using ops::EmbeddingBackwardArgs;
using ops::TwinMatrix;
using ops::Twins;
using ops::VocabularyPart;
using tensor::DType;
using tensor::Matrix;
using tensor::Vector;

struct RowShape {
  int64_t rows, cols;
};
constexpr RowShape kRowShapes[] = {{0, 8},   {1, 1},    {3, 17},   {5, 64},
                                   {9, 100}, {70, 600}, {300, 40}, {2, 2100}};

constexpr auto kExact = [](const auto& twin) { return twin.exact; };
constexpr auto kTested = [](const auto& twin) { return twin.tested; };

// Each token of a vocabulary of 11 comes several times.
struct EmbeddingTwins {
  static constexpr int64_t kSeq = 9, kVocabulary = 11;

  EmbeddingTwins(Twins& twins, const RowShape& s, int64_t gap)
      : tokens(twins.Tokens(s.rows, kVocabulary)),
        token_weight(twins.Input(kVocabulary, s.cols, gap)),
        position_weight(twins.Input(kSeq + 1, s.cols, 2 * gap)),
        out(twins.Output(s.rows, s.cols, gap)),
        d_out(twins.Input(s.rows, s.cols, 3 * gap)),
        d_token(twins.Float(kVocabulary, s.cols, gap)),
        d_position(twins.Float(kSeq + 1, s.cols, 2 * gap)),
        begins(static_cast<size_t>(s.rows)) {
    // Documents of two tokens.
    for (int64_t n = 0; n < s.rows; ++n) {
      begins[static_cast<size_t>(n)] = static_cast<int32_t>(n % kSeq / 2 * 2);
    }
  }

  template <typename Side>
  EmbeddingArgs Forward(Side side, bool with_positions) const {
    EmbeddingArgs args{kSeq, tokens, side(token_weight), {}, side(out)};
    if (with_positions) args.position_weight = side(position_weight);
    return args;
  }
  template <typename Side>
  EmbeddingBackwardArgs Backward(Side side, bool with_positions) const {
    EmbeddingBackwardArgs args{kSeq, tokens, side(d_out), side(d_token), {}};
    if (with_positions) args.d_position_weight = side(d_position);
    return args;
  }

  Vector Begins() { return {begins.data(), DType::kI32, static_cast<int64_t>(begins.size())}; }

  Vector tokens;
  TwinMatrix token_weight, position_weight, out, d_out, d_token, d_position;
  std::vector<int32_t> begins;
};

std::string BitsOf(const Matrix& matrix) {
  std::string bits;
  const auto element = static_cast<int64_t>(SizeOf(matrix.dtype));
  for (int64_t row = 0; row < matrix.rows; ++row) {
    bits.append(matrix.as<char>() + row * matrix.stride * element,
                static_cast<size_t>(matrix.cols * element));
  }
  return bits;
}

// Zeros of either sign are equal.
void ExpectEqual(const Matrix& a, const Matrix& b) {
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t col = 0; col < a.cols; ++col) {
      ASSERT_EQ(ops::ReadElement(a, row, col), ops::ReadElement(b, row, col));
    }
  }
}

class EmbeddingTest : public ::testing::TestWithParam<DType> {
 protected:
  const std::unique_ptr<ops::Ops> exact_ = ops::MakeReferenceOps();
  BlockLauncher launcher_;
};
INSTANTIATE_TEST_SUITE_P(Gpu, EmbeddingTest, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(tensor::Name(info.param)); });

TEST_P(EmbeddingTest, MatchesForwardAndBackward) {
  for (const RowShape& shape : kRowShapes) {
    for (const int64_t gap : {0, 3, 8}) {
      for (const bool with_positions : {false, true}) {
        SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.cols << " gap " << gap
                                          << " positions " << with_positions);
        Twins twins(GetParam());
        const EmbeddingTwins embedding(twins, shape, gap);
        exact_->Embedding(embedding.Forward(kExact, with_positions));
        Embedding(launcher_, embedding.Forward(kTested, with_positions));
        exact_->EmbeddingBackward(embedding.Backward(kExact, with_positions));
        EmbeddingBackward(launcher_, embedding.Backward(kTested, with_positions));
        twins.ExpectClose("Embedding", embedding.out);
        twins.ExpectClose("ColumnSums", embedding.d_token);
        twins.ExpectClose("ColumnSums", embedding.d_position);
      }
    }
  }
}

TEST_P(EmbeddingTest, PositionsCountFromTheBeginsOfDocuments) {
  for (const RowShape& shape : kRowShapes) {
    SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.cols);
    Twins twins(GetParam());
    EmbeddingTwins embedding(twins, shape, 0);
    EmbeddingArgs exact = embedding.Forward(kExact, true);
    EmbeddingArgs tested = embedding.Forward(kTested, true);
    exact.document_begins = tested.document_begins = embedding.Begins();
    exact_->Embedding(exact);
    Embedding(launcher_, tested);
    EmbeddingBackwardArgs exact_backward = embedding.Backward(kExact, true);
    EmbeddingBackwardArgs tested_backward = embedding.Backward(kTested, true);
    exact_backward.document_begins = tested_backward.document_begins = embedding.Begins();
    exact_->EmbeddingBackward(exact_backward);
    EmbeddingBackward(launcher_, tested_backward);
    twins.ExpectClose("Embedding", embedding.out);
    twins.ExpectClose("ColumnSums", embedding.d_token);
    twins.ExpectClose("ColumnSums", embedding.d_position);
  }
}

// The gradient has the bits of a loop over the tokens, one after the other.
TEST_P(EmbeddingTest, GradientsAreAddedInTokenOrder) {
  Twins twins(GetParam());
  const EmbeddingTwins embedding(twins, {300, 24}, 0);
  std::vector<float> expected(embedding.d_token.tested.as<float>(),
                              embedding.d_token.tested.as<float>() + 11 * 24);
  for (int64_t n = 0; n < 300; ++n) {
    for (int64_t c = 0; c < 24; ++c) {
      expected[static_cast<size_t>(embedding.tokens.as<int32_t>()[n] * 24 + c)] +=
          static_cast<float>(ops::ReadElement(embedding.d_out.tested, n, c));
    }
  }
  EmbeddingBackward(launcher_, embedding.Backward(kTested, false));
  EXPECT_EQ(std::memcmp(expected.data(), embedding.d_token.tested.data, expected.size() * 4), 0);
}

// Parts of the vocabulary: their embeddings add up to the whole one's, bit for bit, and each one's
// gradient is its rows of the whole one's.
TEST_P(EmbeddingTest, PartsAddUpToTheWhole) {
  for (const RowShape& shape : {RowShape{3, 17}, RowShape{70, 96}}) {
    Twins twins(GetParam());
    constexpr int64_t kSeq = 9, kVocabulary = 12, kParts = 3, kRows = kVocabulary / kParts;
    const auto [rows, cols] = shape;
    const Vector tokens = twins.Tokens(rows, kVocabulary);
    const Matrix token_weight = twins.Input(kVocabulary, cols, 2).tested;
    const Matrix position_weight = twins.Input(kSeq, cols).tested;
    const Matrix whole = twins.Output(rows, cols).tested;
    const Matrix sum = twins.Input(rows, cols, 0, 0).tested;
    const Matrix part_out = twins.Output(rows, cols, 1).tested;
    const Matrix d_out = twins.Input(rows, cols).tested;
    const Matrix d_whole = twins.Float(kVocabulary, cols, 0, 0).tested;
    const Matrix d_parts = twins.Float(kVocabulary, cols, 0, 0).tested;
    const Matrix d_position = twins.Float(kSeq, cols, 0, 0).tested;
    const Matrix d_position_of_part = twins.Float(kSeq, cols, 0, 0).tested;
    Embedding(launcher_, {kSeq, tokens, token_weight, position_weight, whole});
    EmbeddingBackward(launcher_, {kSeq, tokens, d_out, d_whole, d_position});
    for (int64_t part = 0; part < kParts; ++part) {
      const VocabularyPart vocabulary{part * kRows, kVocabulary};
      const auto rows_of = [&](Matrix matrix) {
        matrix.data = matrix.as<char>() +
                      part * kRows * matrix.stride * static_cast<int64_t>(SizeOf(matrix.dtype));
        matrix.rows = kRows;
        return matrix;
      };
      // Only the second part adds the positions.
      Embedding(launcher_, {kSeq, tokens, rows_of(token_weight),
                            part == 1 ? position_weight : Matrix(), part_out, vocabulary});
      Add(launcher_, sum, part_out, sum);
      EmbeddingBackward(launcher_, {kSeq, tokens, d_out, rows_of(d_parts),
                                    part == 1 ? d_position_of_part : Matrix(), vocabulary});
    }
    ExpectEqual(sum, whole);
    ExpectEqual(d_parts, d_whole);
    ExpectEqual(d_position_of_part, d_position);
  }
}

// Tokens that are not aligned, and tokens outside of the vocabulary, which count as zeros.
TEST_P(EmbeddingTest, OtherTokensAreZerosAndAddNothing) {
  Twins twins(GetParam());
  alignas(16) int32_t numbers[] = {0, 3, -1, 2, 1000, 3, 2, 2};
  const Vector tokens = {numbers + 1, DType::kI32, 7};
  const Matrix weight = twins.Input(4, 8).tested, out = twins.Output(7, 8).tested;
  const Matrix d_out = twins.Input(7, 8).tested, d_weight = twins.Float(4, 8, 0, 0).tested;
  Embedding(launcher_, {7, tokens, weight, {}, out});
  EmbeddingBackward(launcher_, {7, tokens, d_out, d_weight, {}});
  for (int64_t c = 0; c < 8; ++c) {
    const auto at = [c](const Matrix& matrix, int64_t row) {
      return static_cast<float>(ops::ReadElement(matrix, row, c));
    };
    EXPECT_EQ(at(out, 0), at(weight, 3));
    EXPECT_EQ(at(out, 1), 0);
    EXPECT_EQ(at(out, 3), 0);
    EXPECT_EQ(at(d_weight, 0), 0);
    EXPECT_EQ(at(d_weight, 2), at(d_out, 2) + at(d_out, 5) + at(d_out, 6));
    EXPECT_EQ(at(d_weight, 3), at(d_out, 0) + at(d_out, 4));
  }
}

TEST_P(EmbeddingTest, BitsDoNotDependOnTheOrderOfThreads) {
  std::string first;
  for (const uint64_t seed : {1, 100, 2000}) {
    Twins twins(GetParam());
    const EmbeddingTwins embedding(twins, {270, 40}, 8);
    BlockLauncher launcher(seed);
    Embedding(launcher, embedding.Forward(kTested, /*with_positions=*/true));
    EmbeddingBackward(launcher, embedding.Backward(kTested, /*with_positions=*/true));
    EXPECT_TRUE(launcher.seen().empty()) << "these kernels have no barriers to leave out";
    const std::string bits = BitsOf(embedding.out.tested) + BitsOf(embedding.d_token.tested) +
                             BitsOf(embedding.d_position.tested);
    if (first.empty()) first = bits;
    EXPECT_EQ(bits, first);
  }
}

}  // namespace
}  // namespace megascale::gpu
