// Measures each operator of the CPU at the sizes of a small model, in fp32 and bf16, together with
// the ceilings of the same machine in the same run: a square matrix product, and a copy.
//
//   ops_benchmark [threads, 1 by default]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "runtime/device/cpu_device.h"
#include "runtime/ops/ops.h"
#include "tests/bench/operator_rates.h"

int main(int argc, char** argv) {
  using megascale::bench::OperatorRate;
  const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
  const auto device = megascale::device::MakeCpuDevice();
  std::printf("instruction set %s, %d threads\n", megascale::ops::InstructionSet(), threads);
  for (const auto dtype : {megascale::tensor::DType::kF32, megascale::tensor::DType::kBF16}) {
    std::printf("%s: ceiling of matrix products %.0f GFLOP/s\n",
                std::string(megascale::tensor::Name(dtype)).c_str(),
                megascale::ops::MeasureMatMulCeiling(dtype, threads, 0.3) / 1e9);
    const absl::Status measured = megascale::bench::MeasureOperators(
        {.device = device.get(), .dtype = dtype, .threads = threads}, [](const OperatorRate& rate) {
          const bool is_flops = rate.unit == OperatorRate::Unit::kFlops;
          std::printf("  %-34s %9.1f us %8.1f %s\n", rate.name.c_str(), rate.seconds * 1e6,
                      rate.per_second() / 1e9, is_flops ? "GFLOP/s" : "GB/s");
        });
    if (!measured.ok()) {
      std::fprintf(stderr, "ops_benchmark: %s\n", std::string(measured.message()).c_str());
      return 1;
    }
  }
  return 0;
}
