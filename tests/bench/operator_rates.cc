#include "tests/bench/operator_rates.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/benchmark_timer.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/device/host_window.h"
#include "runtime/ops/ops.h"
#include "runtime/tensor/tensor.h"

namespace megascale::bench {
namespace {

using namespace ops;  // the operators' arguments, each used once
using Unit = OperatorRate::Unit;
using tensor::HostVector;

// Calls issued at once take at least this long, so that the wait for the device's end, which each
// measurement has once, does not count.
constexpr double kTurnSeconds = 0.01;

class Rates {
 public:
  Rates(const RatesOptions& options, const std::function<void(const OperatorRate&)>& on_rate)
      : options_(options),
        sizes_(options.sizes),
        dtype_(options.dtype),
        device_(*options.device),
        on_rate_(on_rate),
        stream_(device_.MakeStream("benchmark").value()),
        ops_(device_.MakeOps(stream_.get(), dtype_, options.threads)) {}

  absl::Status Run() {
    RunCopies();
    RunProducts("qkv", 3 * sizes_.hidden, sizes_.hidden);
    RunProducts("attention out", sizes_.hidden, sizes_.hidden);
    RunProducts("mlp in", sizes_.intermediate, sizes_.hidden);
    RunProducts("mlp out", sizes_.hidden, sizes_.intermediate);
    RunProducts("logits", sizes_.vocabulary, sizes_.hidden);
    RunAttention();
    RunRows();
    RunActivations();
    RunElements();
    return stream_->Synchronize();
  }

 private:
  // The memory of tensors lives until the next group of operators begins.
  void* Allocate(size_t bytes) {
    memory_.push_back(device_.Allocate("benchmark", std::max<size_t>(bytes, 1)).value());
    return memory_.back()->data();
  }
  void FreeAll() {
    MEGASCALE_CHECK(stream_->Synchronize().ok());
    memory_.clear();
  }

  // Overwrites with what `value(i)` says of each element.
  template <typename Value>
  void Fill(const Vector& vector, const Value& value) {
    device::HostWindow window(&device_, stream_.get());
    const absl::Status status = window.Write(vector, [&](int64_t first, const HostVector& piece) {
      for (int64_t i = 0; i < piece.size(); ++i) {
        const double x = value(first + i);
        if (piece.dtype() == DType::kF64) piece.as<double>()[i] = x;
        if (piece.dtype() == DType::kF32) piece.as<float>()[i] = static_cast<float>(x);
        if (piece.dtype() == DType::kI32) piece.as<int32_t>()[i] = static_cast<int32_t>(x);
        if (piece.dtype() == DType::kBF16) {
          piece.as<tensor::BFloat16>()[i] = tensor::ToBFloat16(static_cast<float>(x));
        }
      }
      return absl::OkStatus();
    });
    MEGASCALE_CHECK_MSG(status.ok(), std::string(status.message()));
  }
  // Random numbers, because zeros would make the multipliers look faster.
  Vector MakeVector(int64_t size, DType dtype) {
    const Vector vector = {Allocate(static_cast<size_t>(size) * tensor::SizeOf(dtype)), dtype,
                           size};
    Fill(vector, [](int64_t i) {
      const auto bits = (static_cast<uint32_t>(i) + 1) * 2654435761u;
      return static_cast<double>((bits ^ (bits >> 15)) & 0xffffff) * 0x1p-23 - 1;
    });
    return vector;
  }
  Matrix Make(int64_t rows, int64_t cols, DType dtype) {
    return {MakeVector(rows * cols, dtype).data, dtype, rows, cols, cols};
  }
  Matrix Make(int64_t rows, int64_t cols) { return Make(rows, cols, dtype_); }
  Vector MakeZeros(int64_t size) {  // fp32; a device's memory begins as zeros
    return {Allocate(static_cast<size_t>(size) * sizeof(float)), DType::kF32, size};
  }
  Vector MakeTokens() {
    const Vector tokens = {Allocate(static_cast<size_t>(sizes_.tokens) * sizeof(int32_t)),
                           DType::kI32, sizes_.tokens};
    Fill(tokens, [&](int64_t i) { return static_cast<double>(i * 7919 % sizes_.vocabulary); });
    return tokens;
  }
  Vector MakeStepNumbers() {
    const Vector numbers = {Allocate(kNumStepNumbers * sizeof(double)), DType::kF64,
                            kNumStepNumbers};
    Fill(numbers, [](int64_t i) { return i == kLearningRate ? 1e-4 : 1.0; });
    return numbers;
  }

  void Time(const std::string& name, Unit unit, double work, const std::function<void()>& call) {
    const auto turn = [&](int64_t calls) {
      stream_->RunAndWait([&] {
        for (int64_t i = 0; i < calls; ++i) call();
      });
      const absl::Status ended = stream_->Synchronize();
      MEGASCALE_CHECK_MSG(ended.ok(), std::string(ended.message()));
    };
    const double once = base::LeastSeconds({.seconds = 0, .least = 1}, [&] { turn(1); });
    const auto calls = static_cast<int64_t>(std::ceil(std::max(1.0, kTurnSeconds / once)));
    const double seconds = base::LeastSeconds({.seconds = options_.seconds}, [&] { turn(calls); }) /
                           static_cast<double>(calls);
    on_rate_({name, unit, seconds, work});
  }

  // The ceiling of everything that only moves numbers, and the ways to and from the host.
  void RunCopies() {
    const auto bytes = static_cast<size_t>(sizes_.tokens * sizes_.intermediate) * 4;
    void* const from = Allocate(bytes);
    void* const to = Allocate(bytes);
    const auto host = device_.AllocateHost("benchmark", bytes).value();
    const auto size = static_cast<double>(bytes);
    Time("copy", Unit::kBytes, 2 * size, [&] { stream_->Copy(to, from, bytes); });
    Time("copy from the host", Unit::kBytes, size, [&] { stream_->Copy(to, host->data(), bytes); });
    Time("copy to the host", Unit::kBytes, size, [&] { stream_->Copy(host->data(), from, bytes); });
    FreeAll();
  }

  void RunProducts(const std::string& name, int64_t outputs, int64_t inputs) {
    const double flops = 2.0 * sizes_.tokens * outputs * inputs;
    const Matrix x = Make(sizes_.tokens, inputs), weight = Make(outputs, inputs);
    const Matrix y = Make(sizes_.tokens, outputs), d_x = Make(sizes_.tokens, inputs);
    const Matrix d_weight = Make(outputs, inputs, DType::kF32);
    const Vector bias = MakeVector(outputs, dtype_);
    MatMulArgs forward;
    forward.a = x, forward.b = weight, forward.c = y;
    forward.transpose_b = Transpose::kYes;
    forward.bias = bias;
    Time(name + ", forward", Unit::kFlops, flops, [&] { ops_->MatMul(forward); });
    MatMulArgs data;
    data.a = y, data.b = weight, data.c = d_x;
    Time(name + ", gradient of data", Unit::kFlops, flops, [&] { ops_->MatMul(data); });
    MatMulArgs weights;
    weights.a = y, weights.b = x, weights.c = d_weight;
    weights.transpose_a = Transpose::kYes;
    weights.accumulate = true;
    Time(name + ", gradient of weights", Unit::kFlops, flops, [&] { ops_->MatMul(weights); });
    FreeAll();
  }

  void RunAttention() {
    const int64_t width = sizes_.heads * sizes_.head_dim;
    const auto cols = [&](Matrix packed, int64_t first) {
      packed.data = packed.as<char>() + first * width * tensor::SizeOf(dtype_);
      packed.cols = width;
      return packed;
    };
    const Matrix packed = Make(sizes_.tokens, 3 * width), d_packed = Make(sizes_.tokens, 3 * width);
    AttentionArgs args;
    args.batch = sizes_.tokens / sizes_.seq, args.seq = sizes_.seq, args.head_dim = sizes_.head_dim;
    args.heads = args.kv_heads = sizes_.heads;
    args.q = cols(packed, 0), args.k = cols(packed, 1), args.v = cols(packed, 2);
    args.out = Make(sizes_.tokens, width);
    args.log_sum_exp = MakeVector(sizes_.tokens * sizes_.heads, DType::kF32);
    // Two products forward and five backward, over the causal half.
    const double product = 2.0 * sizes_.tokens * (sizes_.seq + 1) / 2 * width;
    Time("attention, forward", Unit::kFlops, 2 * product, [&] { ops_->Attention(args); });
    AttentionBackwardArgs backward;
    backward.forward = args;
    backward.d_out = Make(sizes_.tokens, width);
    backward.d_q = cols(d_packed, 0), backward.d_k = cols(d_packed, 1);
    backward.d_v = cols(d_packed, 2);
    Time("attention, backward", Unit::kFlops, 5 * product,
         [&] { ops_->AttentionBackward(backward); });
    RotaryArgs rotary;
    rotary.seq = sizes_.seq, rotary.heads = sizes_.heads, rotary.head_dim = sizes_.head_dim,
    rotary.x = args.q;
    Time("rotary", Unit::kBytes, Bytes(sizes_.tokens * width, 2), [&] { ops_->Rotary(rotary); });
    FreeAll();
  }

  void RunRows() {
    NormArgs norm;
    norm.x = Make(sizes_.tokens, sizes_.hidden), norm.delta = Make(sizes_.tokens, sizes_.hidden);
    norm.sum = Make(sizes_.tokens, sizes_.hidden), norm.out = Make(sizes_.tokens, sizes_.hidden);
    norm.weight = MakeVector(sizes_.hidden, dtype_), norm.bias = MakeVector(sizes_.hidden, dtype_);
    norm.mean = MakeVector(sizes_.tokens, DType::kF32),
    norm.rstd = MakeVector(sizes_.tokens, DType::kF32);
    Time("layer norm with sum", Unit::kBytes, Bytes(sizes_.tokens * sizes_.hidden, 4),
         [&] { ops_->Norm(norm); });
    NormBackwardArgs backward;
    backward.x = norm.sum, backward.weight = norm.weight;
    backward.mean = norm.mean, backward.rstd = norm.rstd;
    backward.d_out = Make(sizes_.tokens, sizes_.hidden),
    backward.d_x = Make(sizes_.tokens, sizes_.hidden);
    backward.d_weight = MakeVector(sizes_.hidden, DType::kF32);
    backward.d_bias = MakeVector(sizes_.hidden, DType::kF32);
    Time("layer norm, backward", Unit::kBytes, Bytes(sizes_.tokens * sizes_.hidden, 4),
         [&] { ops_->NormBackward(backward); });
    const Vector tokens = MakeTokens();
    const CrossEntropyArgs entropy{Make(sizes_.tokens, sizes_.vocabulary), tokens, 1.0, true,
                                   MakeVector(1, DType::kF64)};
    Time("cross-entropy", Unit::kBytes, Bytes(sizes_.tokens * sizes_.vocabulary, 2),
         [&] { ops_->CrossEntropy(entropy); });
    const LogitStatisticsArgs statistics{
        entropy.logits, tokens, {}, MakeVector(3 * sizes_.tokens, DType::kF32)};
    Time("logit statistics", Unit::kBytes, Bytes(sizes_.tokens * sizes_.vocabulary, 1),
         [&] { ops_->LogitStatistics(statistics); });
    const EmbeddingArgs embedding{sizes_.seq, tokens, Make(sizes_.vocabulary, sizes_.hidden),
                                  Make(sizes_.seq, sizes_.hidden), norm.out};
    Time("embedding", Unit::kBytes, Bytes(sizes_.tokens * sizes_.hidden, 3),
         [&] { ops_->Embedding(embedding); });
    const EmbeddingBackwardArgs d_embedding{sizes_.seq, tokens, norm.out,
                                            Make(sizes_.vocabulary, sizes_.hidden, DType::kF32),
                                            Make(sizes_.seq, sizes_.hidden, DType::kF32)};
    Time("embedding, backward", Unit::kBytes,
         Bytes(sizes_.tokens * sizes_.hidden, 1) +
             4.0 * sizeof(float) * sizes_.tokens * sizes_.hidden,
         [&] { ops_->EmbeddingBackward(d_embedding); });
    FreeAll();
  }

  void RunActivations() {
    const Matrix in = Make(sizes_.tokens, sizes_.intermediate),
                 out = Make(sizes_.tokens, sizes_.intermediate);
    const Matrix d_in = Make(sizes_.tokens, sizes_.intermediate),
                 both = Make(sizes_.tokens, 2 * sizes_.intermediate);
    const Matrix d_both = Make(sizes_.tokens, 2 * sizes_.intermediate);
    const auto time = [&](const char* name, ActivationKind kind, Matrix x, Matrix d_x, int width) {
      const double bytes = Bytes(sizes_.tokens * sizes_.intermediate, 1);
      Time(name, Unit::kBytes, bytes * (width + 1), [&] { ops_->Activation({kind, x, out}); });
      Time(std::string(name) + ", backward", Unit::kBytes, bytes * (2 * width + 1), [&] {
        ops_->ActivationBackward({kind, x, out, d_x});
      });
    };
    time("gelu", ActivationKind::kGelu, in, d_in, 1);
    time("gelu tanh", ActivationKind::kGeluTanh, in, d_in, 1);
    time("swiglu", ActivationKind::kSwiGlu, both, d_both, 2);
    const Vector sums = MakeVector(sizes_.intermediate, DType::kF32);
    Time("column sums", Unit::kBytes, Bytes(sizes_.tokens * sizes_.intermediate, 1),
         [&] { ops_->AddColumnSums(in, sums); });
    Time("add", Unit::kBytes, Bytes(sizes_.tokens * sizes_.intermediate, 3),
         [&] { ops_->Add(in, out, d_in); });
    FreeAll();
  }

  void RunElements() {
    AdamWArgs args;
    args.master = MakeVector(sizes_.parameters, DType::kF32);
    args.grad = MakeVector(sizes_.parameters, DType::kF32);
    args.exp_avg = MakeZeros(sizes_.parameters);
    args.exp_avg_sq = MakeZeros(sizes_.parameters);
    // For fp32 the weights are the master weights.
    if (dtype_ == DType::kBF16) args.compute_copy = MakeVector(sizes_.parameters, dtype_);
    args.weight_decay = 0.1;
    args.step_numbers = MakeStepNumbers();
    const double floats = 4.0 * sizes_.parameters;
    const double copied = args.compute_copy ? Bytes(sizes_.parameters, 1) : 0;
    Time("adamw", Unit::kBytes, 7 * floats + copied, [&] { ops_->AdamW({&args, 1}); });
    const Vector total = MakeVector(1, DType::kF64);
    Time("sum of squares", Unit::kBytes, floats, [&] { ops_->AddSumOfSquares(args.grad, total); });
    FreeAll();
  }

  double Bytes(int64_t elements, int times) const {
    return static_cast<double>(elements) * static_cast<double>(tensor::SizeOf(dtype_)) * times;
  }

  const RatesOptions& options_;
  const OperatorSizes& sizes_;
  const DType dtype_;
  device::Device& device_;
  const std::function<void(const OperatorRate&)>& on_rate_;
  std::vector<std::unique_ptr<device::Memory>> memory_;
  const std::unique_ptr<stream::Stream> stream_;
  const std::unique_ptr<Ops> ops_;
};

}  // namespace

absl::Status MeasureOperators(const RatesOptions& options,
                              const std::function<void(const OperatorRate&)>& on_rate) {
  return Rates(options, on_rate).Run();
}

}  // namespace megascale::bench
