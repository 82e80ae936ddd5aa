// Measures each operator at the sizes of a small model, in fp32 and bf16, together with the
// ceilings of the same machine in the same run: a square matrix product, and the triad a = b + s *
// c.
//
//   ops_benchmark [threads, 1 by default]
//
// Sizes: N 1024 tokens, T 128, C 256, H 4, D 64, I 1024, V 256, and 3 M parameters.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/benchmark_timer.h"
#include "runtime/ops/ops.h"
#include "runtime/tensor/arena.h"

namespace megascale::ops {
namespace {

constexpr int64_t kTokens = 1024, kSeq = 128, kHidden = 256, kHeads = 4, kHeadDim = 64;
constexpr int64_t kIntermediate = 1024, kVocabulary = 256, kParameters = 3'000'000;
constexpr double kSeconds = 0.1;

double MeasureTriad() {
  std::vector<float> a(1 << 24, 1), b(a.size(), 2), c(a.size(), 3);
  const double seconds = base::LeastSeconds({.seconds = kSeconds}, [&] {
    for (size_t i = 0; i < a.size(); ++i) a[i] = b[i] + 0.5f * c[i];
  });
  return 3.0 * sizeof(float) * static_cast<double>(a.size()) / seconds;
}

class Benchmark {
 public:
  Benchmark(DType dtype, int threads)
      : dtype_(dtype),
        ops_(MakeCpuOps(dtype, threads)),
        arena_(*tensor::Arena::Create(size_t{256} << 20)),
        ceiling_(MeasureMatMulCeiling(dtype, threads, 0.3)) {}

  void Run() {
    std::printf("%s: ceiling of matrix products %.0f GFLOP/s\n",
                std::string(tensor::Name(dtype_)).c_str(), ceiling_ / 1e9);
    RunProducts("qkv", 3 * kHidden, kHidden);
    RunProducts("attention out", kHidden, kHidden);
    RunProducts("mlp in", kIntermediate, kHidden);
    RunProducts("mlp out", kHidden, kIntermediate);
    RunProducts("logits", kVocabulary, kHidden);
    RunAttention();
    RunRows();
    RunActivations();
    RunElements();
  }

 private:
  // Random numbers, because zeros would make the multipliers look faster.
  Matrix Make(int64_t rows, int64_t cols, DType dtype) {
    const Matrix matrix = arena_.AllocateMatrix(dtype, rows, cols);
    uint32_t state = 1;
    for (int64_t i = 0; i < rows * cols; ++i) {
      state = state * 1664525 + 1013904223;
      const float value = static_cast<float>(state >> 8) * 0x1p-23f - 1;
      if (dtype == DType::kF32) matrix.as<float>()[i] = value;
      if (dtype == DType::kBF16) matrix.as<tensor::BFloat16>()[i] = tensor::ToBFloat16(value);
    }
    return matrix;
  }
  Matrix Make(int64_t rows, int64_t cols) { return Make(rows, cols, dtype_); }
  Vector MakeVector(int64_t size, DType dtype) {
    const Matrix matrix = Make(1, size, dtype);
    return {matrix.data, dtype, size};
  }
  Vector MakeTokens() {
    const Vector tokens = arena_.Allocate(DType::kI32, kTokens);
    for (int64_t i = 0; i < kTokens; ++i) tokens.as<int32_t>()[i] = i * 7919 % kVocabulary;
    return tokens;
  }

  void Time(const std::string& name, const char* unit, double work,
            const std::function<void()>& call) {
    const double seconds = base::LeastSeconds({.seconds = kSeconds}, call);
    std::printf("  %-34s %9.1f us %8.1f %s\n", name.c_str(), seconds * 1e6, work / seconds / 1e9,
                unit);
  }

  void RunProducts(const std::string& name, int64_t outputs, int64_t inputs) {
    const double flops = 2.0 * kTokens * outputs * inputs;
    const Matrix x = Make(kTokens, inputs), weight = Make(outputs, inputs);
    const Matrix y = Make(kTokens, outputs), d_x = Make(kTokens, inputs);
    const Matrix d_weight = Make(outputs, inputs, DType::kF32);
    const Vector bias = MakeVector(outputs, dtype_);
    MatMulArgs forward;
    forward.a = x, forward.b = weight, forward.c = y;
    forward.transpose_b = Transpose::kYes;
    forward.bias = bias;
    Time(name + ", forward", "GFLOP/s", flops, [&] { ops_->MatMul(forward); });
    MatMulArgs data;
    data.a = y, data.b = weight, data.c = d_x;
    Time(name + ", gradient of data", "GFLOP/s", flops, [&] { ops_->MatMul(data); });
    MatMulArgs weights;
    weights.a = y, weights.b = x, weights.c = d_weight;
    weights.transpose_a = Transpose::kYes;
    weights.accumulate = true;
    Time(name + ", gradient of weights", "GFLOP/s", flops, [&] { ops_->MatMul(weights); });
  }

  void RunAttention() {
    const int64_t width = kHeads * kHeadDim;
    const auto cols = [&](Matrix packed, int64_t first) {
      packed.data = packed.as<char>() + first * width * tensor::SizeOf(dtype_);
      packed.cols = width;
      return packed;
    };
    const Matrix packed = Make(kTokens, 3 * width), d_packed = Make(kTokens, 3 * width);
    AttentionArgs args;
    args.batch = kTokens / kSeq, args.seq = kSeq, args.head_dim = kHeadDim;
    args.heads = args.kv_heads = kHeads;
    args.q = cols(packed, 0), args.k = cols(packed, 1), args.v = cols(packed, 2);
    args.out = Make(kTokens, width);
    args.log_sum_exp = MakeVector(kTokens * kHeads, DType::kF32);
    // Two products forward and five backward, over the causal half.
    const double product = 2.0 * kTokens * (kSeq + 1) / 2 * width;
    Time("attention, forward", "GFLOP/s", 2 * product, [&] { ops_->Attention(args); });
    AttentionBackwardArgs backward;
    backward.forward = args;
    backward.d_out = Make(kTokens, width);
    backward.d_q = cols(d_packed, 0), backward.d_k = cols(d_packed, 1);
    backward.d_v = cols(d_packed, 2);
    Time("attention, backward", "GFLOP/s", 5 * product, [&] { ops_->AttentionBackward(backward); });
    RotaryArgs rotary;
    rotary.seq = kSeq, rotary.heads = kHeads, rotary.head_dim = kHeadDim, rotary.x = args.q;
    Time("rotary", "GB/s", Bytes(kTokens * width, 2), [&] { ops_->Rotary(rotary); });
  }

  void RunRows() {
    NormArgs norm;
    norm.x = Make(kTokens, kHidden), norm.delta = Make(kTokens, kHidden);
    norm.sum = Make(kTokens, kHidden), norm.out = Make(kTokens, kHidden);
    norm.weight = MakeVector(kHidden, dtype_), norm.bias = MakeVector(kHidden, dtype_);
    norm.mean = MakeVector(kTokens, DType::kF32), norm.rstd = MakeVector(kTokens, DType::kF32);
    Time("layer norm with sum", "GB/s", Bytes(kTokens * kHidden, 4), [&] { ops_->Norm(norm); });
    NormBackwardArgs backward;
    backward.x = norm.sum, backward.weight = norm.weight;
    backward.mean = norm.mean, backward.rstd = norm.rstd;
    backward.d_out = Make(kTokens, kHidden), backward.d_x = Make(kTokens, kHidden);
    backward.d_weight = MakeVector(kHidden, DType::kF32);
    backward.d_bias = MakeVector(kHidden, DType::kF32);
    Time("layer norm, backward", "GB/s", Bytes(kTokens * kHidden, 4),
         [&] { ops_->NormBackward(backward); });
    const Vector tokens = MakeTokens();
    double loss = 0;
    const CrossEntropyArgs entropy{
        Make(kTokens, kVocabulary), tokens, 1.0, true, {&loss, DType::kF64, 1}};
    Time("cross-entropy", "GB/s", Bytes(kTokens * kVocabulary, 2),
         [&] { ops_->CrossEntropy(entropy); });
    const LogitStatisticsArgs statistics{
        entropy.logits, tokens, {}, MakeVector(3 * kTokens, DType::kF32)};
    Time("logit statistics", "GB/s", Bytes(kTokens * kVocabulary, 1),
         [&] { ops_->LogitStatistics(statistics); });
    const EmbeddingArgs embedding{kSeq, tokens, Make(kVocabulary, kHidden), Make(kSeq, kHidden),
                                  norm.out};
    Time("embedding", "GB/s", Bytes(kTokens * kHidden, 3), [&] { ops_->Embedding(embedding); });
    const EmbeddingBackwardArgs d_embedding{kSeq, tokens, norm.out,
                                            Make(kVocabulary, kHidden, DType::kF32),
                                            Make(kSeq, kHidden, DType::kF32)};
    Time("embedding, backward", "GB/s",
         Bytes(kTokens * kHidden, 1) + 4.0 * sizeof(float) * kTokens * kHidden,
         [&] { ops_->EmbeddingBackward(d_embedding); });
  }

  void RunActivations() {
    const Matrix in = Make(kTokens, kIntermediate), out = Make(kTokens, kIntermediate);
    const Matrix d_in = Make(kTokens, kIntermediate), both = Make(kTokens, 2 * kIntermediate);
    const Matrix d_both = Make(kTokens, 2 * kIntermediate);
    const auto time = [&](const char* name, ActivationKind kind, Matrix x, Matrix d_x, int width) {
      const double bytes = Bytes(kTokens * kIntermediate, 1);
      Time(name, "GB/s", bytes * (width + 1), [&] { ops_->Activation({kind, x, out}); });
      Time(std::string(name) + ", backward", "GB/s", bytes * (2 * width + 1), [&] {
        ops_->ActivationBackward({kind, x, out, d_x});
      });
    };
    time("gelu", ActivationKind::kGelu, in, d_in, 1);
    time("gelu tanh", ActivationKind::kGeluTanh, in, d_in, 1);
    time("swiglu", ActivationKind::kSwiGlu, both, d_both, 2);
    const Vector sums = MakeVector(kIntermediate, DType::kF32);
    Time("column sums", "GB/s", Bytes(kTokens * kIntermediate, 1),
         [&] { ops_->AddColumnSums(in, sums); });
    Time("add", "GB/s", Bytes(kTokens * kIntermediate, 3), [&] { ops_->Add(in, out, d_in); });
  }

  void RunElements() {
    AdamWArgs args;
    args.master = MakeVector(kParameters, DType::kF32);
    args.grad = MakeVector(kParameters, DType::kF32);
    args.exp_avg = arena_.Allocate(DType::kF32, kParameters);
    args.exp_avg_sq = arena_.Allocate(DType::kF32, kParameters);
    // For fp32 the weights are the master weights.
    if (dtype_ == DType::kBF16) args.compute_copy = MakeVector(kParameters, dtype_);
    args.weight_decay = 0.1;
    double numbers[kNumStepNumbers] = {};
    numbers[kLearningRate] = 1e-4, numbers[kStep] = 1;
    numbers[kClipFactor] = 1, numbers[kIsFinite] = 1;
    args.step_numbers = {numbers, DType::kF64, kNumStepNumbers};
    const double floats = 4.0 * kParameters;
    const double copied = args.compute_copy ? Bytes(kParameters, 1) : 0;
    Time("adamw", "GB/s", 7 * floats + copied, [&] { ops_->AdamW({&args, 1}); });
    double sum = 0;
    const Vector total = {&sum, DType::kF64, 1};
    Time("sum of squares", "GB/s", floats, [&] { ops_->AddSumOfSquares(args.grad, total); });
  }

  double Bytes(int64_t elements, int times) const {
    return static_cast<double>(elements) * static_cast<double>(tensor::SizeOf(dtype_)) * times;
  }

  DType dtype_;
  std::unique_ptr<Ops> ops_;
  tensor::Arena arena_;
  double ceiling_;
};

}  // namespace
}  // namespace megascale::ops

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
  std::printf("instruction set %s, %d threads, triad %.1f GB/s (one thread)\n",
              megascale::ops::InstructionSet(), threads, megascale::ops::MeasureTriad() / 1e9);
  for (const auto dtype : {megascale::tensor::DType::kF32, megascale::tensor::DType::kBF16}) {
    megascale::ops::Benchmark(dtype, threads).Run();
  }
  return 0;
}
