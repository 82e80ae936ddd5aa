// Every operator of every implementation against the float64 reference, in fp32 and bf16. Outputs
// start as NaN and rows have guards between them. Products: product_conformance_test.cc.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/ops/testing/conformance_fixture.h"
#include "runtime/ops/testing/test_numbers.h"
#include "runtime/tensor/sum_tree.h"

namespace megascale::ops {
namespace {

INSTANTIATE_TEST_SUITE_P(All, Conformance, ::testing::ValuesIn(AllTested()),
                         [](const auto& info) { return info.param.name; });

struct RowShape {
  int64_t rows, cols;
};
// The last one is large enough for two threads.
constexpr RowShape kRowShapes[] = {{0, 8}, {1, 1}, {3, 17}, {5, 64}, {9, 100}, {70, 600}};

TEST_P(Conformance, NormMatches) {
  for (const auto& [rows, cols] : kRowShapes) {
    for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
      for (bool with_delta : {false, true}) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << cols << " delta " << with_delta);
        Twins twins(dtype());
        const TwinMatrix x = twins.Input(rows, cols, 3, 2), delta = twins.Input(rows, cols, 1);
        const TwinMatrix sum = twins.Output(rows, cols, 2), out = twins.Output(rows, cols, 5);
        const TwinVector weight = twins.InputVector(cols), bias = twins.InputVector(cols);
        const TwinVector mean = twins.FloatOutputVector(rows), rstd = twins.FloatOutputVector(rows);
        const auto run = [&](Ops& ops, auto side) {
          NormArgs args;
          args.kind = kind;
          args.x = side(x);
          if (with_delta) args.delta = side(delta), args.sum = side(sum);
          args.weight = side(weight);
          if (kind == NormKind::kLayerNorm) args.bias = side(bias);
          args.out = side(out);
          if (kind == NormKind::kLayerNorm) args.mean = side(mean);
          args.rstd = side(rstd);
          args.eps = 0.01;  // rows of one column have no variance: keep 1 / deviation moderate
          ops.Norm(args);
        };
        run(*exact_, [](const auto& twin) { return twin.exact; });
        run(*tested_, [](const auto& twin) { return twin.tested; });
        twins.ExpectClose("Norm", out);
        twins.ExpectClose("Statistic", rstd);
        if (kind == NormKind::kLayerNorm) twins.ExpectClose("Statistic", mean);
        if (with_delta) twins.ExpectClose("Sum", sum);
      }
    }
  }
}

TEST_P(Conformance, NormBackwardMatches) {
  for (const auto& [rows, cols] : kRowShapes) {
    for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << cols);
      Twins twins(dtype());
      const bool centred = kind == NormKind::kLayerNorm;
      const TwinMatrix x = twins.Input(rows, cols, 3, 2), out = twins.Output(rows, cols);
      const TwinMatrix d_out = twins.Input(rows, cols, 1), d_x = twins.Input(rows, cols, 4);
      const TwinVector weight = twins.InputVector(cols);
      const TwinVector d_weight = twins.FloatVector(cols), d_bias = twins.FloatVector(cols);
      const TwinVector mean = twins.FloatOutputVector(rows), rstd = twins.FloatOutputVector(rows);
      const auto run = [&](Ops& ops, auto side) {
        NormArgs forward;
        forward.kind = kind, forward.eps = 0.01;
        forward.x = side(x), forward.out = side(out), forward.weight = side(weight);
        forward.rstd = side(rstd);
        if (centred) forward.mean = side(mean);
        ops.Norm(forward);
        NormBackwardArgs args;
        args.kind = kind;
        args.x = side(x), args.weight = side(weight), args.rstd = side(rstd);
        if (centred) args.mean = side(mean), args.d_bias = side(d_bias);
        args.d_out = side(d_out), args.d_x = side(d_x), args.d_weight = side(d_weight);
        ops.NormBackward(args);
      };
      run(*exact_, [](const auto& twin) { return twin.exact; });
      run(*tested_, [](const auto& twin) { return twin.tested; });
      twins.ExpectClose("NormBackward", d_x);
      twins.ExpectClose("NormBackward", d_weight);
      if (centred) twins.ExpectClose("NormBackward", d_bias);
    }
  }
}

struct AttentionShape {
  int64_t batch, seq, heads, kv_heads, head_dim, window;
  int64_t document = 0;  // tokens of a document; 0: attention reaches over documents
};
void PrintTo(const AttentionShape& s, std::ostream* out) {
  *out << "batch " << s.batch << " seq " << s.seq << " heads " << s.heads << "/" << s.kv_heads
       << " of " << s.head_dim << " window " << s.window << " documents of " << s.document;
}
// Sequences around the tiles of 8, 32, 128 and 512; windows of one, of a tile's edge, and beyond.
constexpr AttentionShape kAttentionShapes[] = {
    {0, 4, 2, 2, 8, 0},         {1, 0, 2, 2, 8, 0},        {1, 1, 1, 1, 1, 0},
    {2, 3, 2, 1, 4, 0},         {1, 8, 4, 2, 16, 0},       {2, 31, 2, 2, 33, 0},
    {1, 32, 1, 1, 32, 0},       {1, 33, 3, 1, 40, 0},      {2, 128, 4, 4, 64, 0},
    {1, 129, 2, 1, 24, 0},      {1, 200, 2, 2, 64, 0},     {1, 545, 1, 1, 8, 0},
    {1, 40, 2, 2, 8, 1},        {1, 70, 2, 1, 16, 7},      {1, 100, 2, 2, 8, 32},
    {1, 100, 2, 2, 8, 33},      {1, 300, 2, 2, 16, 50},    {1, 700, 1, 1, 8, 300},
    {1, 50, 2, 2, 8, 1000},     {1, 161, 4, 2, 65, 0},     {1, 290, 2, 1, 128, 129},
    {2, 3, 2, 1, 4, 0, 1},      {2, 31, 2, 2, 33, 0, 5},   {1, 129, 2, 1, 24, 0, 32},
    {2, 200, 2, 2, 64, 0, 37},  {1, 545, 1, 1, 8, 0, 260}, {1, 300, 2, 1, 16, 50, 70},
    {2, 300, 4, 2, 16, 40, 33}, {1, 161, 2, 2, 65, 0, 500}};

// q, k and v are column ranges of one packed matrix, as a model has them.
struct AttentionTwins {
  AttentionTwins(Twins& twins, const AttentionShape& s)
      : shape(s),
        q_width(s.heads * s.head_dim),
        k_width(s.kv_heads * s.head_dim),
        packed(twins.Input(s.batch * s.seq, q_width + 2 * k_width, 3, 2)),
        out(twins.Output(s.batch * s.seq, q_width, 5)),
        log_sum_exp(twins.FloatOutputVector(s.batch * s.heads * s.seq)),
        d_out(twins.Input(s.batch * s.seq, q_width, 1)),
        d_packed(twins.Output(s.batch * s.seq, q_width + 2 * k_width, 2)),
        begins(static_cast<size_t>(s.batch * s.seq)) {
    // Each sequence begins within a document, at another place of it.
    for (int64_t n = 0; s.document > 0 && n < s.batch * s.seq; ++n) {
      const int64_t before = n / s.seq * 3 + 2, position = n % s.seq;
      const int64_t begin = (position + before) / s.document * s.document - before;
      begins[static_cast<size_t>(n)] = static_cast<int32_t>(std::max<int64_t>(0, begin));
    }
  }

  template <typename Side>
  AttentionArgs Forward(Side side) const {
    AttentionArgs args;
    args.batch = shape.batch, args.seq = shape.seq, args.heads = shape.heads;
    args.kv_heads = shape.kv_heads, args.head_dim = shape.head_dim, args.window = shape.window;
    args.q = side(packed.Cols(0, q_width));
    args.k = side(packed.Cols(q_width, k_width));
    args.v = side(packed.Cols(q_width + k_width, k_width));
    args.out = side(out);
    args.log_sum_exp = side(log_sum_exp);
    if (shape.document > 0) {
      args.document_begins = {const_cast<int32_t*>(begins.data()), DType::kI32, out.exact.rows};
    }
    return args;
  }
  template <typename Side>
  AttentionBackwardArgs Backward(Side side) const {
    AttentionBackwardArgs args;
    args.forward = Forward(side);
    args.d_out = side(d_out);
    args.d_q = side(d_packed.Cols(0, q_width));
    args.d_k = side(d_packed.Cols(q_width, k_width));
    args.d_v = side(d_packed.Cols(q_width + k_width, k_width));
    return args;
  }

  AttentionShape shape;
  int64_t q_width, k_width;
  TwinMatrix packed, out;
  TwinVector log_sum_exp;
  TwinMatrix d_out, d_packed;
  std::vector<int32_t> begins;
};

TEST_P(Conformance, AttentionMatchesForwardAndBackward) {
  for (const AttentionShape& shape : kAttentionShapes) {
    SCOPED_TRACE(::testing::PrintToString(shape));
    Twins twins(dtype());
    const AttentionTwins attention(twins, shape);
    const auto exact = [](const auto& twin) { return twin.exact; };
    const auto tested = [](const auto& twin) { return twin.tested; };
    exact_->Attention(attention.Forward(exact));
    tested_->Attention(attention.Forward(tested));
    twins.ExpectClose("Attention", attention.out);
    twins.ExpectClose("Statistic", attention.log_sum_exp);
    exact_->AttentionBackward(attention.Backward(exact));
    tested_->AttentionBackward(attention.Backward(tested));
    twins.ExpectClose("AttentionBackward", attention.d_packed);
  }
}

TEST_P(Conformance, RotaryMatches) {
  for (bool inverse : {false, true}) {
    const std::pair<int64_t, int64_t> sizes[] = {{2, 0},  {6, 0},   {32, 0},
                                                 {64, 0}, {64, 16}, {6, 2}};
    for (const auto& [head_dim, rotary_dim] : sizes) {
      Twins twins(dtype());
      RotaryArgs args;
      args.seq = 65, args.heads = 5, args.head_dim = head_dim, args.inverse = inverse;
      args.rotary_dim = rotary_dim;
      if (head_dim == 64) args.scaling = {8, 0.9, -0.01, -0.3, 1.3};
      const TwinMatrix x = twins.Input(2 * args.seq, args.heads * head_dim, 3);
      args.x = x.exact;
      exact_->Rotary(args);
      args.x = x.tested;
      tested_->Rotary(args);
      twins.ExpectClose("Rotary", x);
    }
  }
}

TEST_P(Conformance, ActivationMatchesForwardAndBackward) {
  for (const auto& [rows, cols] : kRowShapes) {
    for (ActivationKind kind : kActivationKinds) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << cols << " kind " << int(kind));
      Twins twins(dtype());
      const int64_t in_cols = kind == ActivationKind::kSwiGlu ? 2 * cols : cols;
      const TwinMatrix in = twins.Input(rows, in_cols, 3, 8), out = twins.Output(rows, cols, 1);
      const TwinMatrix d_out = twins.Input(rows, cols, 2), d_in = twins.Output(rows, in_cols, 5);
      exact_->Activation({kind, in.exact, out.exact});
      tested_->Activation({kind, in.tested, out.tested});
      twins.ExpectClose("Activation", out);
      exact_->ActivationBackward({kind, in.exact, d_out.exact, d_in.exact});
      tested_->ActivationBackward({kind, in.tested, d_out.tested, d_in.tested});
      twins.ExpectClose("Activation", d_in);
    }
  }
}

TEST_P(Conformance, EmbeddingMatchesForwardAndBackward) {
  for (const auto& [rows, cols] : kRowShapes) {
    for (const auto& [with_positions, with_documents] :
         {std::pair{false, false}, {true, false}, {true, true}}) {
      Twins twins(dtype());
      const int64_t seq = 9;
      const Vector tokens = twins.Tokens(rows, 11);  // each token comes several times
      const TwinMatrix token_weight = twins.Input(11, cols, 2), out = twins.Output(rows, cols, 1);
      const TwinMatrix position_weight = twins.Input(seq + 1, cols, 3);
      const TwinMatrix d_out = twins.Input(rows, cols, 4), d_token = twins.Float(11, cols, 2);
      const TwinMatrix d_position = twins.Float(seq + 1, cols, 5);
      // Documents of two tokens.
      std::vector<int32_t> begins(static_cast<size_t>(rows));
      for (int64_t n = 0; n < rows; ++n) begins[n] = static_cast<int32_t>(n % seq / 2 * 2);
      const auto run = [&](Ops& ops, auto side) {
        EmbeddingArgs args{seq, tokens, side(token_weight), {}, side(out)};
        EmbeddingBackwardArgs backward{seq, tokens, side(d_out), side(d_token), {}};
        if (with_documents) args.document_begins = {begins.data(), DType::kI32, rows};
        backward.document_begins = args.document_begins;
        if (with_positions) args.position_weight = side(position_weight);
        if (with_positions) backward.d_position_weight = side(d_position);
        ops.Embedding(args);
        ops.EmbeddingBackward(backward);
      };
      run(*exact_, [](const auto& twin) { return twin.exact; });
      run(*tested_, [](const auto& twin) { return twin.tested; });
      twins.ExpectClose("Embedding", out);
      twins.ExpectClose("ColumnSums", d_token);
      twins.ExpectClose("ColumnSums", d_position);
    }
  }
}

TEST_P(Conformance, CrossEntropyMatches) {
  for (const auto& [rows, cols] : {RowShape{0, 5}, {1, 1}, {3, 17}, {8, 256}, {70, 1000}}) {
    for (bool backward : {false, true}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << cols << " backward " << backward);
      Twins twins(dtype());
      const TwinMatrix logits = twins.Input(rows, cols, 3, 10);
      const Vector targets = twins.Tokens(rows, static_cast<int32_t>(cols));
      double exact_loss = 1, tested_loss = 1;  // added to, not overwritten
      CrossEntropyArgs args{logits.exact, targets, 0.125, backward, Number(&exact_loss)};
      exact_->CrossEntropy(args);
      args.logits = logits.tested, args.loss_sum = Number(&tested_loss);
      tested_->CrossEntropy(args);
      EXPECT_NEAR(tested_loss, exact_loss, 1e-6 * exact_loss);
      twins.ExpectClose("CrossEntropy", logits);
    }
  }
}

// A row's columns in parts, as ranks hold them, give the loss and the gradients of the whole row.
TEST_P(Conformance, CrossEntropyOfPartsMatchesThatOfTheWhole) {
  for (const auto& [rows, cols] : {RowShape{0, 6}, {1, 6}, {3, 18}, {8, 258}, {70, 1002}}) {
    for (const int num_parts : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << cols << " in " << num_parts);
      Twins twins(dtype());
      const int64_t part_cols = cols / num_parts;
      const TwinMatrix logits = twins.Input(rows, cols, 3, 10);
      const Vector targets = twins.Tokens(rows, static_cast<int32_t>(cols));
      const TwinVector all = twins.FloatOutputVector(num_parts * 3 * rows);
      for (int part = 0; part < num_parts; ++part) {
        const auto run = [&](Ops& ops, const Matrix& mine, Vector statistics) {
          statistics.data = statistics.as<char>() +
                            part * 3 * rows * static_cast<int64_t>(SizeOf(statistics.dtype));
          statistics.size = 3 * rows;
          ops.LogitStatistics({mine, targets, {part * part_cols, cols}, statistics});
        };
        const TwinMatrix mine = logits.Cols(part * part_cols, part_cols);
        run(*exact_, mine.exact, all.exact);
        run(*tested_, mine.tested, all.tested);
      }
      twins.ExpectClose("CrossEntropy", all);
      double exact_loss = 1;  // added to, not overwritten
      for (int part = 0; part < num_parts; ++part) {
        double tested_loss = 1, no_loss = 1;
        const Matrix mine = logits.Cols(part * part_cols, part_cols).tested;
        CrossEntropyArgs args{
            mine, targets, 0.125, false, Number(&no_loss), {part * part_cols, cols}, all.tested};
        tested_->CrossEntropy(args);
        args.backward = true, args.loss_sum = Number(&tested_loss);
        tested_->CrossEntropy(args);
        EXPECT_EQ(tested_loss, no_loss);
        if (part == 0)
          exact_->CrossEntropy({logits.exact, targets, 0.125, true, Number(&exact_loss)});
        EXPECT_NEAR(tested_loss, exact_loss, 1e-6 * exact_loss);
      }
      twins.ExpectClose("CrossEntropy", logits);
    }
  }
}

// Parts of the vocabulary: their embeddings add up to the whole one's, bit for bit, and each one's
// gradient is its rows of the whole one's.
TEST_P(Conformance, EmbeddingsOfPartsAddUpToTheWhole) {
  for (const auto& [rows, cols] : kRowShapes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << cols);
    Twins twins(dtype());
    constexpr int64_t kSeq = 9, kVocabulary = 12, kParts = 3, kRows = kVocabulary / kParts;
    const Vector tokens = twins.Tokens(rows, kVocabulary);
    const TwinMatrix token_weight = twins.Input(kVocabulary, cols, 2);
    const TwinMatrix position_weight = twins.Input(kSeq, cols);
    const TwinMatrix whole = twins.Output(rows, cols), sum = twins.Input(rows, cols, 0, 0);
    const TwinMatrix part_out = twins.Output(rows, cols, 1);
    const TwinMatrix d_out = twins.Input(rows, cols);
    const TwinMatrix d_whole = twins.Float(kVocabulary, cols, 0, 0);
    const TwinMatrix d_parts = twins.Float(kVocabulary, cols, 0, 0);
    const TwinMatrix d_position = twins.Float(kSeq, cols, 0, 0);
    const TwinMatrix d_position_of_part = twins.Float(kSeq, cols, 0, 0);
    tested_->Embedding({kSeq, tokens, token_weight.tested, position_weight.tested, whole.tested});
    tested_->EmbeddingBackward({kSeq, tokens, d_out.tested, d_whole.tested, d_position.tested});
    for (int64_t part = 0; part < kParts; ++part) {
      const VocabularyPart vocabulary{part * kRows, kVocabulary};
      const auto rows_of = [&](Matrix matrix) {
        matrix.data = matrix.as<char>() +
                      part * kRows * matrix.stride * static_cast<int64_t>(SizeOf(matrix.dtype));
        matrix.rows = kRows;
        return matrix;
      };
      // Only the second part adds the positions.
      tested_->Embedding({kSeq, tokens, rows_of(token_weight.tested),
                          part == 1 ? position_weight.tested : Matrix(), part_out.tested,
                          vocabulary});
      tested_->Add(sum.tested, part_out.tested, sum.tested);
      tested_->EmbeddingBackward({kSeq, tokens, d_out.tested, rows_of(d_parts.tested),
                                  part == 1 ? d_position_of_part.tested : Matrix(), vocabulary});
    }
    const auto expect_same = [](const Matrix& a, const Matrix& b) {
      for (int64_t n = 0; n < a.rows; ++n) {
        for (int64_t c = 0; c < a.cols; ++c) ASSERT_EQ(ReadElement(a, n, c), ReadElement(b, n, c));
      }
    };
    expect_same(sum.tested, whole.tested);
    expect_same(d_parts.tested, d_whole.tested);
    expect_same(d_position_of_part.tested, d_position.tested);
  }
}

// A diverged run must show: no kernel may turn a NaN into a number, whatever its bits.
TEST_P(Conformance, NanStaysNan) {
  for (const uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    SCOPED_TRACE(bits);
    float nan;
    std::memcpy(&nan, &bits, sizeof(nan));
    const auto poison = [&](const Matrix& matrix, int64_t col) {
      if (matrix.dtype == DType::kF32) matrix.as<float>()[col] = nan;
      // Rounding would make the bits quiet: take them as they are.
      if (matrix.dtype == DType::kBF16) matrix.as<uint16_t>()[col] = bits >> 16;
    };
    Twins twins(dtype());
    const TwinMatrix logits = twins.Input(1, 40), in = twins.Input(1, 40);
    const TwinMatrix out = twins.Output(1, 40);
    const Vector targets = twins.Tokens(1, 1);
    double loss = 0;
    poison(logits.tested, 7);
    tested_->CrossEntropy({logits.tested, targets, 1.0, true, Number(&loss)});
    EXPECT_TRUE(std::isnan(loss));
    poison(in.tested, 7);
    for (ActivationKind kind : {ActivationKind::kGelu, ActivationKind::kGeluTanh}) {
      tested_->Activation({kind, in.tested, out.tested});
      EXPECT_TRUE(std::isnan(ReadElement(out.tested, 0, 7)));
      EXPECT_FALSE(std::isnan(ReadElement(out.tested, 0, 8)));
    }
    const AttentionTwins attention(twins, {1, 40, 1, 1, 8, 0});
    const auto tested = [](const auto& twin) { return twin.tested; };
    poison(attention.packed.tested, 0);  // the first query
    tested_->Attention(attention.Forward(tested));
    EXPECT_TRUE(std::isnan(ReadElement(attention.out.tested, 0, 0)));
    EXPECT_FALSE(std::isnan(ReadElement(attention.out.tested, 1, 0)));
  }
}

TEST_P(Conformance, AdamWMatchesOverThreeSteps) {
  for (const int64_t size : {0, 1, 17, 256, 40001}) {
    SCOPED_TRACE(size);
    Twins twins(dtype());
    const TwinVector master = twins.FloatVector(size), copy = twins.OutputVector(size);
    const TwinVector exp_avg = twins.FloatVector(size, 0), exp_avg_sq = twins.FloatVector(size, 0);
    for (int64_t step = 1; step <= 3; ++step) {
      const TwinVector grad = twins.FloatVector(size);
      const auto run = [&](Ops& ops, auto side) {
        AdamWArgs args{side(master), side(exp_avg), side(exp_avg_sq), side(grad), side(copy)};
        TestStepNumbers numbers(0.01, step, 0.5);
        args.weight_decay = 0.1, args.step_numbers = numbers.vector();
        ops.AdamW({&args, 1});
      };
      run(*exact_, [](const auto& twin) { return twin.exact; });
      run(*tested_, [](const auto& twin) { return twin.tested; });
    }
    twins.ExpectClose("AdamW", master);
    twins.ExpectClose("AdamW", exp_avg);
    twins.ExpectClose("AdamW", exp_avg_sq);
    twins.ExpectClose("AdamW", copy);
  }
}

// As LAMB uses it: the update overwrites the gradient, the master stays.
TEST_P(Conformance, AdamWUpdatesMatchOverThreeStepsAndLeaveTheMaster) {
  for (const int64_t size : {0, 1, 17, 256, 40001}) {
    SCOPED_TRACE(size);
    Twins twins(dtype());
    const TwinVector master = twins.FloatVector(size);
    const std::vector<float> before(master.tested.as<float>(), master.tested.as<float>() + size);
    const TwinVector exp_avg = twins.FloatVector(size, 0), exp_avg_sq = twins.FloatVector(size, 0);
    for (int64_t step = 1; step <= 3; ++step) {
      const TwinVector grad = twins.FloatVector(size);
      const auto run = [&](Ops& ops, auto side) {
        AdamWArgs args{side(master), side(exp_avg), side(exp_avg_sq), side(grad), {}};
        TestStepNumbers numbers(/*lr=*/1, step, 0.5);  // the rate has no effect
        args.update = args.grad, args.weight_decay = 0.1, args.step_numbers = numbers.vector();
        ops.AdamW({&args, 1});
      };
      run(*exact_, [](const auto& twin) { return twin.exact; });
      run(*tested_, [](const auto& twin) { return twin.tested; });
      twins.ExpectClose("AdamWUpdate", grad);
    }
    twins.ExpectClose("AdamW", exp_avg);
    twins.ExpectClose("AdamW", exp_avg_sq);
    EXPECT_TRUE(std::equal(before.begin(), before.end(), master.tested.as<float>()));
  }
}

TEST_P(Conformance, AddScaledMatches) {
  for (const int64_t size : {0, 1, 31, 64, 40001}) {
    SCOPED_TRACE(size);
    Twins twins(dtype());
    const TwinVector x = twins.FloatVector(size), out = twins.FloatVector(size);
    exact_->AddScaled(-0.3, x.exact, out.exact);
    tested_->AddScaled(-0.3, x.tested, out.tested);
    twins.ExpectClose("AddScaled", out);
  }
}

TEST_P(Conformance, SumsMatch) {
  for (const auto& [rows, cols] : kRowShapes) {
    Twins twins(dtype());
    const TwinMatrix a = twins.Input(rows, cols, 3), b = twins.Input(rows, cols, 1);
    const TwinMatrix out = twins.Output(rows, cols, 2);
    const TwinVector columns = twins.FloatVector(cols);
    exact_->Add(a.exact, b.exact, out.exact);
    tested_->Add(a.tested, b.tested, out.tested);
    exact_->AddColumnSums(a.exact, columns.exact);
    tested_->AddColumnSums(a.tested, columns.tested);
    twins.ExpectClose("Sum", out);
    twins.ExpectClose("ColumnSums", columns);
    exact_->Add(a.exact, b.exact, a.exact);
    tested_->Add(a.tested, b.tested, a.tested);
    twins.ExpectClose("Sum", a);
  }
}

TEST_P(Conformance, SumOfSquaresMatches) {
  for (const int64_t size : {0, 1, 31, 64, 100000}) {
    Twins twins(dtype());
    const TwinVector x = twins.FloatVector(size);
    double exact = 0.5, tested = 0.5;  // added to, not overwritten
    exact_->AddSumOfSquares(x.exact, Number(&exact));
    tested_->AddSumOfSquares(x.tested, Number(&tested));
    EXPECT_NEAR(tested, exact, 1e-12 * exact);
  }
}

// One call for a list of any sizes gives what a call for each gives.
TEST_P(Conformance, AListOfSlicesIsWorkedOnAsEachByItself) {
  Twins twins(dtype());
  TestStepNumbers numbers(0.01, 3, 0.5);
  std::vector<AdamWArgs> list, apart;
  std::vector<TwinVector> masters, copies;
  for (const int64_t size : {0, 1, 63, 40001, 64, 0, 5, 20000}) {
    const TwinVector grad = twins.FloatVector(size), exp_avg = twins.FloatVector(size, 0);
    const TwinVector exp_avg_sq = twins.FloatVector(size, 0);
    masters.push_back(twins.FloatVector(size));
    copies.push_back(twins.OutputVector(size));
    for (const bool is_exact : {true, false}) {
      const auto side = [&](const TwinVector& twin) { return is_exact ? twin.exact : twin.tested; };
      (is_exact ? apart : list)
          .push_back({.master = side(masters.back()),
                      .exp_avg = side(exp_avg),
                      .exp_avg_sq = side(exp_avg_sq),
                      .grad = side(grad),
                      .compute_copy = side(copies.back()),
                      .step_numbers = numbers.vector(),
                      .weight_decay = size % 2 == 0 ? 0.1 : 0.0});
    }
  }
  for (const AdamWArgs& args : apart) exact_->AdamW({&args, 1});
  tested_->AdamW(list);
  for (const TwinVector& master : masters) twins.ExpectClose("AdamW", master);
  for (const TwinVector& copy : copies) twins.ExpectClose("AdamW", copy);
}

TEST_P(Conformance, TrustStepsMatch) {
  constexpr int kParts = 3;
  // Sums of two tensors by part; the second tensor's update has the norm 0, so its ratio is 1.
  std::array<double, kParts* 4> sums = {1, 4, 2, 0, 3, 0.5, 1, 0, 0, 2, 5, 0};
  for (const int64_t size : {0, 1, 31, 40001}) {
    SCOPED_TRACE(size);
    Twins twins(dtype());
    const TwinVector one = twins.FloatVector(size), two = twins.FloatVector(size);
    const TwinVector update = twins.FloatVector(size);
    TestStepNumbers numbers(0.3, 1);
    const auto run = [&](Ops& ops, auto side) {
      TrustStepArgs first = {.master = side(one),
                             .update = side(update),
                             .trust_sums = {sums.data(), DType::kF64, kParts * 4},
                             .num_parts = kParts,
                             .step_numbers = numbers.vector()};
      TrustStepArgs second = first;
      second.master = side(two), second.first_sum = 2;
      const std::vector<TrustStepArgs> list = {first, second};
      ops.TrustStep(list);
    };
    const TwinVector by_hand = twins.FloatVector(size);
    const auto copy = [&](Ops& ops, const Vector& from, const Vector& to) { ops.Cast(from, to); };
    copy(*exact_, one.exact, by_hand.exact);
    copy(*tested_, one.tested, by_hand.tested);
    run(*exact_, [](const auto& twin) { return twin.exact; });
    run(*tested_, [](const auto& twin) { return twin.tested; });
    twins.ExpectClose("AddScaled", one);
    twins.ExpectClose("AddScaled", two);
    tested_->AddScaled(-0.3 * (std::sqrt(4.0) / std::sqrt(6.5)), update.tested, by_hand.tested);
    EXPECT_TRUE(std::equal(one.tested.as<float>(), one.tested.as<float>() + size,
                           by_hand.tested.as<float>()));
  }
}

TEST_P(Conformance, AStepThatIsNotFiniteChangesNothing) {
  constexpr int64_t kSize = 1000;
  Twins twins(dtype());
  const TwinVector master = twins.FloatVector(kSize), exp_avg = twins.FloatVector(kSize, 0);
  const TwinVector exp_avg_sq = twins.FloatVector(kSize, 0), grad = twins.FloatVector(kSize);
  const TwinVector update = twins.FloatVector(kSize);
  const auto values = [&](const TwinVector& twin) {
    const float* begin = twin.tested.as<float>();
    return std::vector<float>(begin, begin + kSize);
  };
  const auto before = std::array{values(master), values(exp_avg), values(exp_avg_sq)};
  TestStepNumbers numbers(0.01, 1);
  numbers.numbers[kIsFinite] = 0;
  AdamWArgs adam = {master.tested, exp_avg.tested, exp_avg_sq.tested, grad.tested, {}};
  adam.step_numbers = numbers.vector();
  tested_->AdamW({&adam, 1});
  std::array<double, 2> sums = {1, 1};
  const TrustStepArgs trust = {.master = master.tested,
                               .update = update.tested,
                               .trust_sums = {sums.data(), DType::kF64, 2},
                               .step_numbers = numbers.vector()};
  tested_->TrustStep({&trust, 1});
  EXPECT_EQ(before, (std::array{values(master), values(exp_avg), values(exp_avg_sq)}));
}

TEST_P(Conformance, NormsOfRanksAreCombinedInTheirOrder) {
  const double inf = std::numeric_limits<double>::infinity();
  struct Case {
    std::vector<double> ranks;
    double clip_grad, clip_factor, is_finite, stop;
  };
  for (const Case& given :
       {Case{{16, 2, 0}, 1, 0.25, 1, 0}, Case{{9, 2, 1, 7, 3, 2}, 8, 1, 1, 2},
        Case{{16, 2, 0, 0, 1, 0}, 0, 1, 1, 0},
        Case{{1, 1, 0, 1, 2, 0, 1, 3, 0, 1, 4, 2, 5, 5, 1}, 0, 1, 1, 2},
        Case{{inf, 2, 0, 1, 1, 0}, 1, 0, 0, 0}, Case{{1, std::nan(""), 1, 1, 1, 0}, 2, 1, 0, 1}}) {
    for (Ops* ops : {exact_.get(), tested_.get()}) {
      std::vector<double> ranks = given.ranks;
      TestStepNumbers numbers(0.5, 7, 99);
      ops->CombineNorms({.ranks = {ranks.data(), DType::kF64, static_cast<int64_t>(ranks.size())},
                         .clip_grad = given.clip_grad,
                         .step_numbers = numbers.vector()});
      EXPECT_EQ(numbers.numbers[kLearningRate], 0.5);
      EXPECT_EQ(numbers.numbers[kStep], 7);
      EXPECT_EQ(numbers.numbers[kIsFinite], given.is_finite);
      EXPECT_EQ(numbers.numbers[kStop], given.stop);
      EXPECT_EQ(numbers.numbers[kClipFactor], given.clip_factor);
      double squares = 0;
      for (size_t i = 0; i < ranks.size(); i += kNumRankNumbers) squares += ranks[i];
      EXPECT_EQ(numbers.numbers[kSumOfSquares], squares);
    }
  }
}

TEST_P(Conformance, SumsOfAGroupAreContributedToALargerOneInTheOrderOfTheTree) {
  // Sums of these have other bits in another order.
  std::vector<double> ranks;
  const auto square = [](int64_t rank) { return 1.0 / static_cast<double>(3 + 7 * rank); };
  const auto loss = [&](int64_t rank) { return 3e5 * square(11 - rank); };
  for (const int count : {1, 2, 3, 5, 7, 11}) {
    ranks.clear();
    for (int rank = 0; rank < count; ++rank) {
      ranks.insert(ranks.end(), {square(rank), loss(rank), rank == 1 ? 2.0 : 0.0});
    }
    for (Ops* ops : {exact_.get(), tested_.get()}) {
      double sums[kNumRankNumbers] = {9, 9, 9};
      ops->CombineNorms({.ranks = {ranks.data(), DType::kF64, static_cast<int64_t>(ranks.size())},
                         .sums = {sums, DType::kF64, kNumRankNumbers}});
      EXPECT_EQ(sums[kRankSumOfSquares], tensor::SumTree(0, count, square)) << count;
      EXPECT_EQ(sums[kRankLossSum], tensor::SumTree(0, count, loss)) << count;
      EXPECT_EQ(sums[kRankStop], count > 1 ? 2 : 0) << count;
    }
  }
}

TEST_P(Conformance, TheFirstValueThatIsNotFiniteIsFound) {
  Twins twins(dtype());
  const Matrix x = twins.Input(7, 33).tested;
  double found = 5;
  tested_->FirstNotFinite(x, Number(&found));
  EXPECT_EQ(found, 0);
  std::vector<double> numbers = {1, 2, -std::numeric_limits<double>::infinity(), std::nan("")};
  tested_->FirstNotFinite({numbers.data(), DType::kF64, 2, 2, 2}, Number(&found));
  EXPECT_EQ(found, -std::numeric_limits<double>::infinity());
  tested_->FirstNotFinite({numbers.data() + 1, DType::kF64, 2, 1, 2}, Number(&found));
  EXPECT_TRUE(std::isnan(found)) << "the column between lies outside of the matrix";
  tested_->FirstNotFinite({numbers.data(), DType::kF64, 0, 4, 4}, Number(&found));
  EXPECT_EQ(found, 0);
  double total = 1;
  tested_->AddTotal({numbers.data(), DType::kF64, 2}, Number(&total));
  EXPECT_EQ(total, 4);
}

TEST_P(Conformance, CastRoundsToNearestEvenAndBack) {
  for (const int64_t size : {0, 1, 31, 64, 40001}) {
    Twins twins(DType::kBF16);
    const TwinVector wide = twins.FloatVector(size), narrow = twins.OutputVector(size);
    const TwinVector back = twins.FloatOutputVector(size);
    tested_->Cast(wide.tested, narrow.tested);
    tested_->Cast(narrow.tested, back.tested);
    for (int64_t i = 0; i < size; ++i) {
      const tensor::BFloat16 expected = tensor::ToBFloat16(wide.tested.as<float>()[i]);
      ASSERT_EQ(narrow.tested.as<tensor::BFloat16>()[i].bits, expected.bits) << i;
      ASSERT_EQ(back.tested.as<float>()[i], tensor::ToFloat(expected)) << i;
    }
  }
}

TEST_P(Conformance, FillZeroOverwritesNan) {
  Twins twins(dtype());
  const TwinVector x = twins.OutputVector(33);
  tested_->FillZero(x.tested);
  exact_->FillZero(x.exact);
  twins.ExpectClose("Sum", x);
}

TEST_P(Conformance, CastKeepsNanAndInfinity) {
  std::vector<float> wide(40, std::nanf("0x7fffff"));
  wide[1] = INFINITY;
  wide[2] = -INFINITY;
  std::vector<tensor::BFloat16> narrow(40);
  tested_->Cast({wide.data(), DType::kF32, 40}, {narrow.data(), DType::kBF16, 40});
  EXPECT_EQ(tensor::ToFloat(narrow[1]), INFINITY);
  EXPECT_EQ(tensor::ToFloat(narrow[2]), -INFINITY);
  for (int i = 3; i < 40; ++i) EXPECT_TRUE(std::isnan(tensor::ToFloat(narrow[i]))) << i;
}

TEST(ClipFactor, ScalesOnlyNormsAboveTheLimit) {
  EXPECT_EQ(ClipFactor(4.0, 2.0), 1.0);
  EXPECT_EQ(ClipFactor(16.0, 2.0), 0.5);
  EXPECT_EQ(ClipFactor(16.0, 0.0), 1.0);
  EXPECT_EQ(ClipFactor(0.0, 1.0), 1.0);
}

}  // namespace
}  // namespace megascale::ops
