// Times every operator of the GPU at the sizes of a model of 7 billion parameters, beside what the
// device can reach: the bandwidth of its own copies, measured in the same run, and the peak rate of
// its products.
//
//   gpu_benchmark [--precision bf16|fp32] [--small] [--json FILE]
//   gpu_benchmark --libraries           opens CUDA's libraries instead, and names their files
//   gpu_benchmark --check [--small]     tests the device instead (runtime/device/check)
//   gpu_benchmark --weights [--small]   times the initial weights of such a model instead
#include <dlfcn.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "gpu/cuda/cublas_lt_api.h"
#include "gpu/cuda/cuda_api.h"
#include "gpu/cuda/nccl_api.h"
#include "nlohmann/json.hpp"
#include "runtime/device/check/device_check.h"
#include "runtime/device/testing/test_devices.h"
#include "tests/bench/operator_rates.h"
#include "tests/bench/weights_rates.h"

namespace megascale::bench {
namespace {

constexpr OperatorSizes kSizes = {.tokens = 8192,
                                  .seq = 4096,
                                  .hidden = 4096,
                                  .heads = 32,
                                  .head_dim = 128,
                                  .intermediate = 16384,
                                  .vocabulary = 50304,
                                  .parameters = 200'000'000};
// For the emulator, which computes some million times slower.
constexpr OperatorSizes kSmallSizes = {.tokens = 32,
                                       .seq = 16,
                                       .hidden = 64,
                                       .heads = 1,
                                       .head_dim = 64,
                                       .intermediate = 64,
                                       .vocabulary = 64,
                                       .parameters = 4096};

struct Options {
  std::string precision = "bf16";
  std::string json;  // a file that gets a line for each operator as soon as it was measured
  bool small = false;
  bool check = false;
  bool libraries = false;
  bool weights = false;
};

// Prints the file of a library, from one of its functions, or why it was not opened.
template <typename Function>
void PrintLibrary(const char* name, const absl::Status& opened, Function* function) {
  Dl_info info = {};
  if (!opened.ok() || ::dladdr(reinterpret_cast<void*>(function), &info) == 0) {
    std::printf("%s: absent: %s\n", name, std::string(opened.message()).c_str());
  } else {
    std::printf("%s: %s\n", name, info.dli_fname);
  }
}

// Needs no driver. Returns 1 if a library is missing without which there is no job on one GPU.
int ShowLibraries() {
  const auto cuda = cuda::LoadCudaFrom(cuda::ToolkitFiles("libcudart.so.13"));
  const auto cublas_lt = cuda::LoadCublasLt();
  const auto nccl = cuda::LoadNccl();
  PrintLibrary("CUDA runtime", cuda.status(), cuda.ok() ? cuda->cudaMalloc : nullptr);
  PrintLibrary("cuBLASLt", cublas_lt.status(),
               cublas_lt.ok() ? (*cublas_lt)->cublasLtMatmul : nullptr);
  PrintLibrary("NCCL", nccl.status(), nccl.ok() ? (*nccl)->ncclAllReduce : nullptr);
  return cuda.ok() && cublas_lt.ok() ? 0 : 1;
}

device::check::CheckOptions SmallCheck() {
  device::check::CheckOptions options = device::check::QuickDeviceCheck();
  options.memory.size_bytes = size_t{1} << 20;
  options.copies.size_bytes = size_t{1} << 20;
  options.products.size = 64;
  return options;
}

// Tests the device. Returns 1 if a part failed.
int RunCheck(const Options& options) {
  const auto device = device::AllDevices().front().make(/*seed=*/1);
  std::printf("%s\n", device->Describe().name.c_str());
  int failed = 0;
  const auto check = options.small ? SmallCheck() : device::check::FullDeviceCheck();
  for (const auto& [part, result, took] :
       device::check::CheckDevice(device.get(), check, [](absl::string_view /*part*/) {})) {
    const bool is_flops = result.flops_per_second > 0;
    std::printf("  %-22s %9.1f %s %s\n", part.c_str(),
                is_flops ? result.flops_per_second / 1e12 : result.bytes_per_second / 1e9,
                is_flops ? "TFLOP/s" : "GB/s   ",
                result.failure.empty() && result.note.empty()
                    ? "passed"
                    : (result.failure + result.note).c_str());
    if (!result.failure.empty()) failed = 1;
  }
  return failed;
}

int RunWeights(const Options& options) {
  const auto device = device::AllDevices().front().make(/*seed=*/1);
  std::printf("%s\n", device->Describe().name.c_str());
  WeightsTableOptions table;
  if (options.small) table.config = SmallModel();
  PrintWeightsHead();
  const absl::Status measured = PrintWeights(table, "device", device.get());
  if (measured.ok()) return 0;
  std::fprintf(stderr, "gpu_benchmark: %s\n", std::string(measured.message()).c_str());
  return 1;
}

// The part of what the device can reach; 0: unknown.
double ShareOf(const OperatorRate& rate, const device::PeakRates& peak, tensor::DType dtype,
               double copy_rate) {
  const double most = rate.unit == OperatorRate::Unit::kFlops ? peak.OfProducts(dtype) : copy_rate;
  return most > 0 ? rate.per_second() / most : 0;
}

int Run(const Options& options) {
  const auto device = device::AllDevices().front().make(/*seed=*/1);
  const device::Description description = device->Describe();
  const auto dtype = options.precision == "bf16" ? tensor::DType::kBF16 : tensor::DType::kF32;
  std::printf("%s, %s\n", description.name.c_str(), options.precision.c_str());
  std::ofstream json(options.json);
  double copy_rate = 0;
  const absl::Status measured = MeasureOperators(
      {.device = device.get(),
       .dtype = dtype,
       .seconds = options.small ? 0.0 : 0.1,
       .sizes = options.small ? kSmallSizes : kSizes},
      [&](const OperatorRate& rate) {
        if (rate.name == "copy") copy_rate = rate.per_second();
        const double share = ShareOf(rate, description.peak, dtype, copy_rate);
        const bool is_flops = rate.unit == OperatorRate::Unit::kFlops;
        json << nlohmann::json({{"device", description.name},
                                {"precision", options.precision},
                                {"name", rate.name},
                                {"seconds", rate.seconds},
                                {"per_second", rate.per_second()},
                                {"unit", is_flops ? "FLOP" : "byte"},
                                {"share", share}})
             << std::endl;
        std::printf("  %-34s %10.1f us %9.1f %s %6.1f %% of %s\n", rate.name.c_str(),
                    rate.seconds * 1e6, rate.per_second() / (is_flops ? 1e12 : 1e9),
                    is_flops ? "TFLOP/s" : "GB/s   ", 100 * share,
                    is_flops ? "the device's peak" : "the copy's rate");
      });
  if (!measured.ok()) {
    std::fprintf(stderr, "gpu_benchmark: %s\n", std::string(measured.message()).c_str());
    return 1;
  }
  if (options.json.empty() || json.good()) return 0;
  std::fprintf(stderr, "gpu_benchmark: --json %s could not be written\n", options.json.c_str());
  return 1;
}

}  // namespace
}  // namespace megascale::bench

int main(int argc, char** argv) {
  megascale::bench::Options options;
  CLI::App app("Every operator of the GPU, beside what the device can reach.");
  app.option_defaults()->always_capture_default();
  app.add_option("--precision", options.precision)->check(CLI::IsMember({"bf16", "fp32"}));
  app.add_option("--json", options.json, "a file that gets a line of JSON for each operator");
  app.add_flag("--small", options.small, "sizes that an emulator can compute");
  app.add_flag("--check", options.check, "test memory, copies and products of the device instead");
  app.add_flag("--weights", options.weights, "time the initial weights of a model instead");
  app.add_flag("--libraries", options.libraries, "open CUDA's libraries, and name their files");
  CLI11_PARSE(app, argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what is stopped has shown what it measured
  if (options.libraries) return megascale::bench::ShowLibraries();
  if (options.weights) return megascale::bench::RunWeights(options);
  if (options.check) return megascale::bench::RunCheck(options);
  return megascale::bench::Run(options);
}
