// Measures how long the initial weights of a whole model take, layer by layer, with one thread and
// with all. The default is the shape of Llama 2 7B.
//
//   weights_benchmark --layers 32 --hidden 4096 --intermediate 11008
//
// One thread makes the first layers only; all threads make the whole model. Beside them, in the
// same run, stands what memory allows: the time in which as many bytes are filled. "device": the
// same weights through a window into the memory of a strict device, which the host cannot touch. A
// thread of the host does its copies, so that it has one core less than a GPU leaves.
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/check.h"
#include "runtime/device/host_window.h"
#include "runtime/device/testing/strict_device.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/initialize.h"

namespace megascale::bench {
namespace {

struct Made {
  int64_t elements = 0;
  double seconds = 0;
  double fill_seconds = 0;  // memset of the same bytes
};

// Where the weights of a layer go.
using MakeLayer = std::function<void(const model::ChunkLayout& layout, int num_threads)>;

double Seconds(absl::Time since) { return absl::ToDoubleSeconds(absl::Now() - since); }

// Makes the weights of the first `num_layers` layers, the embedding among them and, for all layers,
// the output matrix.
Made MakeWeights(const model::ModelConfig& config, int num_layers, int num_threads,
                 std::vector<float>* buffer, const MakeLayer& make_layer) {
  Made made;
  const int all = static_cast<int>(config.num_layers);
  for (int layer = 0; layer < num_layers; ++layer) {
    const model::ChunkLayout layout(config, model::MakeChunkRange(config, all, layer).value());
    absl::Time begin = absl::Now();
    std::memset(buffer->data(), 1, static_cast<size_t>(layout.num_elements()) * sizeof(float));
    made.fill_seconds += Seconds(begin);
    begin = absl::Now();
    make_layer(layout, num_threads);
    made.seconds += Seconds(begin);
    made.elements += layout.num_elements();
  }
  return made;
}

// Returns the elements of the largest layer.
int64_t LargestLayer(const model::ModelConfig& config) {
  int64_t most = 0;
  const int all = static_cast<int>(config.num_layers);
  for (const int layer : {0, all - 1}) {
    const model::ChunkLayout layout(config, model::MakeChunkRange(config, all, layer).value());
    most = std::max(most, layout.num_elements());
  }
  return most;
}

void Print(const char* to, const Made& made, int num_threads) {
  const double millions = static_cast<double>(made.elements) / 1e6;
  std::printf("%7s  %7d  %10.0f  %8.1f  %12.1f  %8.1f\n", to, num_threads, millions, made.seconds,
              millions / made.seconds, made.fill_seconds);
}

// Buffers of one layer are used again and again, as they are in use.
void Compare(const model::ModelConfig& config, int first_layers, int num_threads) {
  const int num_layers = static_cast<int>(config.num_layers);
  const int64_t most = LargestLayer(config);
  std::vector<float> buffer(static_cast<size_t>(most));
  const MakeLayer on_host = [&](const model::ChunkLayout& layout, int threads) {
    model::InitializeParameters(
        config, layout, {.seed = 1234, .num_threads = threads}, 0,
        tensor::HostVector::Of(absl::MakeSpan(buffer)).Slice(0, layout.num_elements()));
  };
  const auto device = device::StrictDevice::Create();
  const auto stream = device->MakeStream("weights").value();
  const auto memory = device->Allocate("weights", buffer.size() * sizeof(float)).value();
  device::HostWindow window(device.get(), stream.get());
  const MakeLayer on_device = [&](const model::ChunkLayout& layout, int threads) {
    const model::InitializeOptions options = {.seed = 1234, .num_threads = threads};
    const tensor::Vector there = {memory->data(), tensor::DType::kF32, layout.num_elements()};
    const auto fill = [&](int64_t first, const tensor::HostVector& piece) {
      model::InitializeParameters(config, layout, options, first, piece);
      return absl::OkStatus();
    };
    MEGASCALE_CHECK(window.Write(there, fill).ok());
  };
  std::printf("%7s  %7s  %10s  %8s  %12s  %8s\n", "to", "threads", "M elements", "s",
              "M elements/s", "fill, s");
  const int first = std::min(first_layers, num_layers);
  for (const auto& [to, make] : {std::pair("host", on_host), std::pair("device", on_device)}) {
    Print(to, MakeWeights(config, first, 1, &buffer, make), 1);
    Print(to, MakeWeights(config, num_layers, num_threads, &buffer, make), num_threads);
  }
}

int Main(int argc, char** argv) {
  model::ModelConfig config;
  config.vocab_size = 32000;
  config.hidden_size = 4096;
  config.num_layers = 32;
  config.num_heads = 32;
  config.num_kv_heads = 32;
  config.intermediate_size = 11008;
  config.position = model::PositionKind::kRotary;
  config.norm = ops::NormKind::kRmsNorm;
  config.activation = ops::ActivationKind::kSwiGlu;
  config.qkv_bias = config.attention_bias = config.mlp_bias = false;
  int first_layers = 2;
  CLI::App app("Times the initial weights of a model.");
  app.add_option("--layers", config.num_layers)->capture_default_str()->check(CLI::Range(1, 256));
  app.add_option("--hidden", config.hidden_size, "a multiple of the heads")->capture_default_str();
  app.add_option("--heads", config.num_heads)->capture_default_str()->check(CLI::Range(1, 256));
  app.add_option("--intermediate", config.intermediate_size)->capture_default_str();
  app.add_option("--vocab", config.vocab_size)->capture_default_str();
  app.add_option("--first-layers", first_layers, "layers that are also made with one thread")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  CLI11_PARSE(app, argc, argv);
  config.num_kv_heads = config.num_heads;
  config.head_dim = config.hidden_size / config.num_heads;
  Compare(config, first_layers, std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  rusage usage = {};
  MEGASCALE_CHECK(::getrusage(RUSAGE_SELF, &usage) == 0);
  std::printf("peak memory %ld MiB\n", usage.ru_maxrss / 1024);
  return 0;
}

}  // namespace
}  // namespace megascale::bench

int main(int argc, char** argv) { return megascale::bench::Main(argc, argv); }
