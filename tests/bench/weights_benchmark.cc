// Measures how long the initial weights of a whole model take, layer by layer, with one thread and
// with all. The default is the shape of Llama 2 7B.
//
//   weights_benchmark --layers 32 --hidden 4096 --intermediate 11008
//   weights_benchmark --device Cpu
//
// One thread makes the first layers only; all threads make the whole model. Beside them, in the
// same run, stands what memory allows: the time in which as many bytes are filled. "Cpu": in the
// host's memory. "Strict": through a window into the memory of a device that the host cannot touch;
// a thread of the host does its copies, so that it has one core less than a GPU leaves. On a GPU:
// gpu_benchmark --weights.
#include <sys/resource.h>

#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "runtime/base/check.h"
#include "runtime/device/testing/test_devices.h"
#include "tests/bench/weights_rates.h"

namespace megascale::bench {
namespace {

int Main(int argc, char** argv) {
  WeightsTableOptions options;
  model::ModelConfig& config = options.config;
  std::vector<std::string> names;
  for (const device::TestDevice& device : device::AllDevices()) names.push_back(device.name);
  std::string only;
  CLI::App app("Times the initial weights of a model.");
  app.add_option("--layers", config.num_layers)->capture_default_str()->check(CLI::Range(1, 256));
  app.add_option("--hidden", config.hidden_size, "a multiple of the heads")->capture_default_str();
  app.add_option("--heads", config.num_heads)->capture_default_str()->check(CLI::Range(1, 256));
  app.add_option("--intermediate", config.intermediate_size)->capture_default_str();
  app.add_option("--vocab", config.vocab_size)->capture_default_str();
  app.add_option("--first-layers", options.first_layers,
                 "layers that are also made with one thread")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  app.add_option("--device", only, "where the weights go; default: every device")
      ->check(CLI::IsMember(names));
  CLI11_PARSE(app, argc, argv);
  config.num_kv_heads = config.num_heads;
  config.head_dim = config.hidden_size / config.num_heads;
  PrintWeightsHead();
  for (const device::TestDevice& device : device::AllDevices()) {
    if (!only.empty() && device.name != only) continue;
    const absl::Status measured =
        PrintWeights(options, device.name.c_str(), device.make(/*seed=*/1).get());
    if (measured.ok()) continue;
    std::fprintf(stderr, "weights_benchmark: %s: %s\n", device.name.c_str(),
                 std::string(measured.message()).c_str());
    return 1;
  }
  rusage usage = {};
  MEGASCALE_CHECK(::getrusage(RUSAGE_SELF, &usage) == 0);
  std::printf("peak memory %ld MiB\n", usage.ru_maxrss / 1024);
  return 0;
}

}  // namespace
}  // namespace megascale::bench

int main(int argc, char** argv) { return megascale::bench::Main(argc, argv); }
