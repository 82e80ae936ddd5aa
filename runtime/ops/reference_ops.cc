// The operators by their definitions, in float64 and plain loops. Nothing here is fast or clever:
// all other implementations are compared with it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/ops/check_arguments.h"
#include "runtime/ops/epilogues.h"
#include "runtime/ops/host_numbers.h"
#include "runtime/ops/ops.h"
#include "runtime/ops/reference_attention.h"

namespace megascale::ops {
namespace {

// Returns the row or column of the token among `count`; -1 if the token is in another part.
int64_t PlaceOfToken(const Vector& tokens, int64_t index, const VocabularyPart& part,
                     int64_t count) {
  const int64_t token = tokens.as<int32_t>()[index];
  MEGASCALE_CHECK(token >= 0 && token < (part.vocab_size == 0 ? count : part.vocab_size));
  const int64_t place = token - part.first_token;
  return place >= 0 && place < count ? place : -1;
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct ValueAndSlope {
  double value;
  double slope;
};

ValueAndSlope Gelu(double x) {
  const double cumulative = 0.5 * std::erfc(-x / std::sqrt(2.0));
  const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
  return {x * cumulative, cumulative + x * density};
}

ValueAndSlope GeluTanh(double x) {
  const double scale = std::sqrt(2 / M_PI);
  const double tanh = std::tanh(scale * (x + 0.044715 * x * x * x));
  const double inner_slope = scale * (1 + 3 * 0.044715 * x * x);
  return {0.5 * x * (1 + tanh), 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * inner_slope};
}

ValueAndSlope Silu(double x) {
  const double sigmoid = Sigmoid(x);
  return {x * sigmoid, sigmoid + x * sigmoid * (1 - sigmoid)};
}

ValueAndSlope Activate(ActivationKind kind, double x) {
  return kind == ActivationKind::kGelu ? Gelu(x) : GeluTanh(x);
}

// The softmax statistics of a row.
struct RowOfLogits {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;  // of exp(logit - max)
  double target_logit = 0;
};

RowOfLogits RowOf(const Matrix& logits, int64_t n) {
  RowOfLogits row;
  for (int64_t v = 0; v < logits.cols; ++v) row.max = std::max(row.max, At(logits, n, v));
  for (int64_t v = 0; v < logits.cols; ++v) row.sum += std::exp(At(logits, n, v) - row.max);
  return row;
}

// Combines the statistics of all parts. Shapes: `statistics` [parts, 3, rows].
RowOfLogits RowOfParts(const Vector& statistics, int64_t rows, int64_t n) {
  RowOfLogits row;
  for (int64_t i = 0; i < statistics.size; i += 3 * rows) {
    row.max = std::max(row.max, At(statistics, i + n));
  }
  for (int64_t i = 0; i < statistics.size; i += 3 * rows) {
    row.sum += At(statistics, i + rows + n) * std::exp(At(statistics, i + n) - row.max);
    row.target_logit += At(statistics, i + 2 * rows + n);
  }
  return row;
}

// Returns the row's position in its sequence of at most `seq` tokens.
int64_t PositionOf(const Vector& places, int64_t n, int64_t seq) {
  return (places ? places.as<int32_t>()[n] : n) % seq;
}

// Returns the row of the position weights that row n takes.
int64_t PositionRow(const EmbeddingArgs& args, int64_t n) {
  const int64_t position = PositionOf(args.places, n, args.seq);
  return args.document_begins ? position - args.document_begins.as<int32_t>()[n] : position;
}
int64_t PositionRow(const EmbeddingBackwardArgs& args, int64_t n) {
  const int64_t begin = args.document_begins ? args.document_begins.as<int32_t>()[n] : 0;
  return n % args.seq - begin;
}

void AddRow(double factor, const double* __restrict values, int64_t count,
            double* __restrict sums) {
  for (int64_t j = 0; j < count; ++j) sums[j] += factor * values[j];
}

class ReferenceOps final : public Ops {
 public:
  DType compute() const override { return DType::kF64; }

  void MatMul(const MatMulArgs& args) override {
    CheckArguments(args, compute());
    const bool a_transposed = args.transpose_a == Transpose::kYes;
    const bool b_transposed = args.transpose_b == Transpose::kYes;
    const int64_t inner = a_transposed ? args.a.rows : args.a.cols, cols = args.c.cols;
    // The factors of one k are to lie one behind the other, and not to be gathered for each row.
    std::vector<double> columns;
    if (b_transposed) columns.resize(static_cast<size_t>(inner * cols));
    for (size_t at = 0; at < columns.size(); ++at) {
      columns[at] = At(args.b, static_cast<int64_t>(at) % cols, static_cast<int64_t>(at) / cols);
    }
    const auto factors = [&](int64_t k) {
      return b_transposed ? columns.data() + k * cols : &At(args.b, k, 0);
    };
    std::vector<double> sums(static_cast<size_t>(cols));
    for (int64_t i = 0; i < args.c.rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        const double begin = args.bias ? At(args.bias, j) : 0;
        sums[static_cast<size_t>(j)] = args.accumulate ? At(args.c, i, j) : begin;
      }
      for (int64_t k = 0; k < inner; ++k) {
        AddRow(a_transposed ? At(args.a, k, i) : At(args.a, i, k), factors(k), cols, sums.data());
      }
      for (int64_t j = 0; j < cols; ++j) At(args.c, i, j) = sums[static_cast<size_t>(j)];
    }
    RunEpilogues(args, this);
  }

  void Norm(const NormArgs& args) override {
    CheckArguments(args, compute());
    const int64_t cols = args.x.cols;
    for (int64_t n = 0; n < args.x.rows; ++n) {
      const auto input = [&](int64_t c) {
        return At(args.x, n, c) + (args.delta ? At(args.delta, n, c) : 0);
      };
      double mean = 0, square = 0;
      if (args.kind == NormKind::kLayerNorm) {
        for (int64_t c = 0; c < cols; ++c) mean += input(c) / cols;
        At(args.mean, n) = mean;
      }
      for (int64_t c = 0; c < cols; ++c) square += (input(c) - mean) * (input(c) - mean) / cols;
      const double rstd = 1 / std::sqrt(square + args.eps);
      At(args.rstd, n) = rstd;
      for (int64_t c = 0; c < cols; ++c) {
        const double x = input(c);
        if (args.delta) At(args.sum, n, c) = x;
        At(args.out, n, c) =
            (x - mean) * rstd * At(args.weight, c) + (args.bias ? At(args.bias, c) : 0);
      }
    }
  }

  void NormBackward(const NormBackwardArgs& args) override {
    CheckArguments(args, compute());
    const bool centred = args.kind == NormKind::kLayerNorm;
    const int64_t cols = args.x.cols;
    for (int64_t n = 0; n < args.x.rows; ++n) {
      const double mean = centred ? At(args.mean, n) : 0, rstd = At(args.rstd, n);
      const auto normal = [&](int64_t c) { return (At(args.x, n, c) - mean) * rstd; };
      double gradient_mean = 0, product_mean = 0;
      for (int64_t c = 0; c < cols; ++c) {
        const double d_out = At(args.d_out, n, c);
        At(args.d_weight, c) += d_out * normal(c);
        if (args.d_bias) At(args.d_bias, c) += d_out;
        if (centred) gradient_mean += d_out * At(args.weight, c) / cols;
        product_mean += d_out * At(args.weight, c) * normal(c) / cols;
      }
      for (int64_t c = 0; c < cols; ++c) {
        const double d_normal = At(args.d_out, n, c) * At(args.weight, c);
        At(args.d_x, n, c) += rstd * (d_normal - gradient_mean - normal(c) * product_mean);
      }
    }
  }

  void Attention(const AttentionArgs& args) override {
    CheckArguments(args, compute());
    ReferenceAttention(args);
  }
  void AttentionBackward(const AttentionBackwardArgs& args) override {
    CheckArguments(args, compute());
    ReferenceAttentionBackward(args);
  }
  void CachedAttention(const CachedAttentionArgs& args) override {
    CheckArguments(args, compute());
    ReferenceCachedAttention(args);
  }

  void Rotary(const RotaryArgs& args) override {
    CheckArguments(args, compute());
    const int64_t half = args.turned() / 2;
    for (int64_t n = 0; n < args.x.rows; ++n) {
      for (int64_t h = 0; h < args.heads; ++h) {
        for (int64_t i = 0; i < half; ++i) {
          const double angle = PositionOf(args.places, n, args.seq) * args.Frequency(i);
          const double amplitude = args.scaling.amplitude;
          const double cosine = amplitude * std::cos(angle);
          const double sine = amplitude * (args.inverse ? -std::sin(angle) : std::sin(angle));
          double& first = At(args.x, n, h * args.head_dim + i);
          double& second = At(args.x, n, h * args.head_dim + half + i);
          const double rotated = first * cosine - second * sine;
          second = second * cosine + first * sine;
          first = rotated;
        }
      }
    }
  }

  void Activation(const ActivationArgs& args) override {
    CheckArguments(args, compute());
    const int64_t cols = args.out.cols;
    for (int64_t n = 0; n < args.in.rows; ++n) {
      for (int64_t c = 0; c < cols; ++c) {
        const double x = At(args.in, n, c);
        At(args.out, n, c) = args.kind == ActivationKind::kSwiGlu
                                 ? Silu(x).value * At(args.in, n, cols + c)
                                 : Activate(args.kind, x).value;
      }
    }
  }

  void ActivationBackward(const ActivationBackwardArgs& args) override {
    CheckArguments(args, compute());
    const int64_t cols = args.d_out.cols;
    for (int64_t n = 0; n < args.in.rows; ++n) {
      for (int64_t c = 0; c < cols; ++c) {
        const double x = At(args.in, n, c), d_out = At(args.d_out, n, c);
        if (args.kind == ActivationKind::kSwiGlu) {
          const ValueAndSlope silu = Silu(x);
          At(args.d_in, n, c) = d_out * At(args.in, n, cols + c) * silu.slope;
          At(args.d_in, n, cols + c) = d_out * silu.value;
        } else {
          At(args.d_in, n, c) = d_out * Activate(args.kind, x).slope;
        }
      }
    }
  }

  void Embedding(const EmbeddingArgs& args) override {
    CheckArguments(args, compute());
    for (int64_t n = 0; n < args.out.rows; ++n) {
      const int64_t row = PlaceOfToken(args.tokens, n, args.vocabulary, args.token_weight.rows);
      for (int64_t c = 0; c < args.out.cols; ++c) {
        At(args.out, n, c) = row >= 0 ? At(args.token_weight, row, c) : 0;
        if (!args.position_weight) continue;
        At(args.out, n, c) += At(args.position_weight, PositionRow(args, n), c);
      }
    }
  }

  void EmbeddingBackward(const EmbeddingBackwardArgs& args) override {
    CheckArguments(args, compute());
    for (int64_t n = 0; n < args.d_out.rows; ++n) {
      const int64_t row = PlaceOfToken(args.tokens, n, args.vocabulary, args.d_token_weight.rows);
      for (int64_t c = 0; c < args.d_out.cols; ++c) {
        const double d_out = At(args.d_out, n, c);
        if (row >= 0) At(args.d_token_weight, row, c) += d_out;
        if (args.d_position_weight) At(args.d_position_weight, PositionRow(args, n), c) += d_out;
      }
    }
  }

  void LogitStatistics(const LogitStatisticsArgs& args) override {
    CheckArguments(args, compute());
    const int64_t rows = args.logits.rows;
    for (int64_t n = 0; n < rows; ++n) {
      const int64_t target = PlaceOfToken(args.targets, n, args.vocabulary, args.logits.cols);
      const RowOfLogits row = RowOf(args.logits, n);
      At(args.statistics, n) = row.max;
      At(args.statistics, rows + n) = row.sum;
      At(args.statistics, 2 * rows + n) = target >= 0 ? At(args.logits, n, target) : 0;
    }
  }

  void CrossEntropy(const CrossEntropyArgs& args) override {
    CheckArguments(args, compute());
    for (int64_t n = 0; n < args.logits.rows; ++n) {
      const int64_t target = PlaceOfToken(args.targets, n, args.vocabulary, args.logits.cols);
      RowOfLogits row;
      if (args.statistics) {
        row = RowOfParts(args.statistics, args.logits.rows, n);
      } else {
        row = RowOf(args.logits, n);
        row.target_logit = At(args.logits, n, target);
      }
      At(args.loss_sum, 0) += row.max + std::log(row.sum) - row.target_logit;
      if (!args.backward) continue;
      for (int64_t v = 0; v < args.logits.cols; ++v) {
        double& logit = At(args.logits, n, v);
        logit = (std::exp(logit - row.max) / row.sum - (v == target ? 1 : 0)) * args.gradient_scale;
      }
    }
  }

  void AdamW(absl::Span<const AdamWArgs> list) override {
    for (const AdamWArgs& args : list) AdamWOf(args);
  }

  void TrustStep(absl::Span<const TrustStepArgs> list) override {
    for (const TrustStepArgs& args : list) {
      CheckArguments(args, compute());
      if (IsFinite(args.step_numbers)) AddScaled(TrustFactor(args), args.update, args.master);
    }
  }

  void CombineNorms(const CombineNormsArgs& args) override {
    CheckArguments(args);
    CombineNormsOnHost(args);
  }

  void AdamWOf(const AdamWArgs& args) {
    CheckArguments(args, compute());
    if (!IsFinite(args.step_numbers)) return;
    const double step = NumberOf(args.step_numbers, kStep);
    const double lr = NumberOf(args.step_numbers, kLearningRate);
    const double correction1 = 1 - std::pow(args.beta1, step);
    const double correction2 = 1 - std::pow(args.beta2, step);
    for (int64_t i = 0; i < args.master.size; ++i) {
      const double grad = At(args.grad, i) * NumberOf(args.step_numbers, kClipFactor);
      double& exp_avg = At(args.exp_avg, i);
      double& exp_avg_sq = At(args.exp_avg_sq, i);
      double& master = At(args.master, i);
      exp_avg = args.beta1 * exp_avg + (1 - args.beta1) * grad;
      exp_avg_sq = args.beta2 * exp_avg_sq + (1 - args.beta2) * grad * grad;
      const double direction =
          exp_avg / correction1 / (std::sqrt(exp_avg_sq / correction2) + args.eps);
      const double update = direction + args.weight_decay * master;
      if (args.update) {
        At(args.update, i) = update;
        continue;
      }
      master -= lr * update;
      if (args.compute_copy) At(args.compute_copy, i) = master;
    }
  }

  void AddColumnSums(const Matrix& x, const Vector& out) override {
    CheckColumnSums(x, out, compute());
    for (int64_t n = 0; n < x.rows; ++n) {
      for (int64_t c = 0; c < x.cols; ++c) At(out, c) += At(x, n, c);
    }
  }

  void Add(const Matrix& a, const Matrix& b, const Matrix& out) override {
    CheckAdd(a, b, out, compute());
    for (int64_t n = 0; n < out.rows; ++n) {
      for (int64_t c = 0; c < out.cols; ++c) At(out, n, c) = At(a, n, c) + At(b, n, c);
    }
  }

  void AddScaled(double factor, const Vector& x, const Vector& out) override {
    CheckAddScaled(x, out, compute());
    for (int64_t i = 0; i < out.size; ++i) At(out, i) += factor * At(x, i);
  }

  void AddSumOfSquares(const Vector& x, const Vector& out) override {
    MEGASCALE_CHECK(x.dtype == DType::kF64);
    CheckNumbers("out", out, 1);
    double sum = 0;
    for (int64_t i = 0; i < x.size; ++i) sum += At(x, i) * At(x, i);
    At(out, 0) += sum;
  }

  void AddTotal(const Vector& x, const Vector& out) override {
    CheckNumbers("x", x, x.size);
    CheckNumbers("out", out, 1);
    for (int64_t i = 0; i < x.size; ++i) At(out, 0) += At(x, i);
  }

  void FirstNotFinite(const Matrix& x, const Vector& out) override {
    CheckFirstNotFinite(x, out, compute());
    FirstNotFiniteOnHost(x, out);
  }

  void Cast(const Vector& from, const Vector& to) override {
    MEGASCALE_CHECK(from.size == to.size);
    for (int64_t i = 0; i < from.size; ++i) Write(to, i, Read(from, i));
  }

  void FillZero(const Vector& x) override {
    std::fill_n(x.as<char>(), x.size * tensor::SizeOf(x.dtype), char{0});
  }

 private:
  static double Read(const Vector& vector, int64_t i) {
    switch (vector.dtype) {
      case DType::kF64:
        return vector.as<double>()[i];
      case DType::kF32:
        return vector.as<float>()[i];
      case DType::kBF16:
        return tensor::ToFloat(vector.as<tensor::BFloat16>()[i]);
      case DType::kI32:
        return vector.as<int32_t>()[i];
    }
    return 0;
  }
  static void Write(const Vector& vector, int64_t i, double value) {
    switch (vector.dtype) {
      case DType::kF64:
        vector.as<double>()[i] = value;
        break;
      case DType::kF32:
        vector.as<float>()[i] = static_cast<float>(value);
        break;
      case DType::kBF16:
        vector.as<tensor::BFloat16>()[i] = tensor::ToBFloat16(static_cast<float>(value));
        break;
      case DType::kI32:
        vector.as<int32_t>()[i] = static_cast<int32_t>(value);
        break;
    }
  }
};

}  // namespace

std::unique_ptr<Ops> MakeReferenceOps() { return std::make_unique<ReferenceOps>(); }

}  // namespace megascale::ops
