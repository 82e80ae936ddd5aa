// Measures attention over sequence and window, in fp32 and bf16, forward and backward, for one
// sequence of two heads of 64. Prints time, rate and scratch, and the machine's rate of matrix
// products. FLOPs count the pairs of query and key that see each other: two products forward, five
// backward.
//
//   attention_benchmark [--csv] [threads, 1 by default]
//
// tests/bench/plot_attention.py draws the CSV.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "runtime/base/benchmark_timer.h"
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/ops.h"
#include "runtime/tensor/arena.h"

namespace megascale::ops {
namespace {

constexpr int64_t kBatch = 1, kHeads = 2, kHeadDim = 64, kWidth = kHeads * kHeadDim;
constexpr int64_t kSequences[] = {256, 512, 1024, 2048, 4096, 8192};
constexpr int64_t kWindows[] = {0, 256, 1024};
constexpr double kSeconds = 0.05;

struct Options {
  bool csv = false;
  int threads = 1;
};

class Benchmark {
 public:
  Benchmark(DType dtype, const Options& options)
      : dtype_(dtype),
        options_(options),
        ops_(MakeCpuOps(dtype, options.threads)),
        ceiling_(MeasureMatMulCeiling(dtype, options.threads, 0.3)) {}

  void Run() {
    if (!options_.csv) {
      std::printf("%s: ceiling of matrix products %.0f GFLOP/s\n", name_.c_str(), ceiling_ * 1e-9);
      std::printf("  %-8s %6s %6s %12s %10s %9s %14s\n", "", "seq", "window", "ms", "GFLOP/s",
                  "% ceiling", "scratch bytes");
    }
    for (const int64_t window : kWindows) {
      for (const int64_t seq : kSequences) {
        if (window < seq) RunShape(seq, window);
      }
    }
  }

 private:
  void RunShape(int64_t seq, int64_t window) {
    tensor::Arena arena = *tensor::Arena::Create(12 * kBatch * seq * kWidth * sizeof(float));
    const auto make = [&] { return MakeMatrix(arena, kBatch * seq); };
    AttentionArgs forward;
    forward.batch = kBatch, forward.seq = seq, forward.window = window;
    forward.heads = forward.kv_heads = kHeads, forward.head_dim = kHeadDim;
    forward.q = make(), forward.k = make(), forward.v = make(), forward.out = make();
    forward.log_sum_exp = arena.Allocate(DType::kF32, kBatch * kHeads * seq);
    const double pairs =
        window == 0 ? 0.5 * seq * (seq + 1) : 0.5 * window * (window + 1) + (seq - window) * window;
    const double product = 2.0 * kBatch * kWidth * pairs;
    Print("forward", forward, 2 * product, cpu::AttentionScratchSize(forward),
          [&] { ops_->Attention(forward); });
    AttentionBackwardArgs backward;
    backward.forward = forward;
    backward.d_out = make(), backward.d_q = make(), backward.d_k = make(), backward.d_v = make();
    Print("backward", forward, 5 * product, cpu::AttentionBackwardScratchSize(forward),
          [&] { ops_->AttentionBackward(backward); });
  }

  void Print(const char* name, const AttentionArgs& args, double flops, int64_t scratch_floats,
             const std::function<void()>& call) {
    const double seconds = base::LeastSeconds({.seconds = kSeconds}, call);
    const int64_t scratch_bytes =
        scratch_floats * static_cast<int64_t>(sizeof(float)) * options_.threads;
    std::printf(options_.csv ? "%s,%s,%ld,%ld,%.6f,%.1f,%.1f,%ld\n"
                             : "  %.0s%-8s %6ld %6ld %12.3f %10.1f %9.1f %14ld\n",
                name_.c_str(), name, args.seq, args.window, seconds * 1e3, flops / seconds * 1e-9,
                options_.csv ? ceiling_ * 1e-9 : 100 * flops / seconds / ceiling_, scratch_bytes);
  }

  Matrix MakeMatrix(tensor::Arena& arena, int64_t rows) {
    const Vector memory = arena.Allocate(dtype_, rows * kWidth);
    for (int64_t i = 0; i < memory.size; ++i) {
      state_ = state_ * 1664525 + 1013904223;
      const float value = static_cast<float>(state_ >> 8) * 0x1p-23f - 1;
      if (dtype_ == DType::kF32) memory.as<float>()[i] = value;
      if (dtype_ == DType::kBF16) memory.as<tensor::BFloat16>()[i] = tensor::ToBFloat16(value);
    }
    return {memory.data, dtype_, rows, kWidth, kWidth};
  }

  const DType dtype_;
  const Options options_;
  std::unique_ptr<Ops> ops_;
  const double ceiling_;
  const std::string name_{tensor::Name(dtype_)};
  uint32_t state_ = 1;
};

}  // namespace
}  // namespace megascale::ops

int main(int argc, char** argv) {
  using namespace megascale::ops;
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--csv") {
      options.csv = true;
    } else {
      options.threads = std::max(1, std::atoi(argv[i]));
    }
  }
  if (options.csv) {
    std::printf("dtype,direction,seq,window,milliseconds,gflops,ceiling_gflops,scratch_bytes\n");
  }
  for (const DType dtype : {DType::kF32, DType::kBF16}) Benchmark(dtype, options).Run();
}
