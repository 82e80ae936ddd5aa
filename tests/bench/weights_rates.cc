#include "tests/bench/weights_rates.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/status.h"
#include "runtime/device/host_window.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/initialize.h"

namespace megascale::bench {
namespace {

double Seconds(absl::Time since) { return absl::ToDoubleSeconds(absl::Now() - since); }

absl::StatusOr<model::ChunkLayout> LayerOf(const model::ModelConfig& config, int layer) {
  ASSIGN_OR_RETURN(const model::ChunkRange range,
                   model::MakeChunkRange(config, static_cast<int>(config.num_layers), layer));
  return model::ChunkLayout(config, range);
}

// Returns the elements of the largest layer.
absl::StatusOr<int64_t> LargestLayer(const model::ModelConfig& config) {
  int64_t most = 0;
  for (const int layer : {0, static_cast<int>(config.num_layers) - 1}) {
    ASSIGN_OR_RETURN(const model::ChunkLayout layout, LayerOf(config, layer));
    most = std::max(most, layout.num_elements());
  }
  return most;
}

absl::Status Fill(int64_t /*first*/, const tensor::HostVector& piece) {
  std::memset(piece.data(), 1, static_cast<size_t>(piece.bytes()));
  return absl::OkStatus();
}

}  // namespace

// The memory of one layer is used again and again, as it is in use.
absl::StatusOr<WeightsRate> MeasureWeights(const WeightsOptions& options) {
  ASSIGN_OR_RETURN(const int64_t most, LargestLayer(options.config));
  ASSIGN_OR_RETURN(const auto stream, options.device->MakeStream("weights"));
  ASSIGN_OR_RETURN(
      const auto memory,
      options.device->Allocate("weights of a layer", static_cast<size_t>(most) * sizeof(float)));
  device::HostWindow window(options.device, stream.get());
  const model::InitializeOptions initialize = {.seed = 1234, .num_threads = options.num_threads};
  WeightsRate rate;
  for (int layer = 0; layer < options.num_layers; ++layer) {
    ASSIGN_OR_RETURN(const model::ChunkLayout layout, LayerOf(options.config, layer));
    const tensor::Vector weights = {memory->data(), tensor::DType::kF32, layout.num_elements()};
    absl::Time begin = absl::Now();
    RETURN_IF_ERROR(window.Write(weights, Fill));
    rate.fill_seconds += Seconds(begin);
    const auto make = [&](int64_t first, const tensor::HostVector& piece) {
      model::InitializeParameters(options.config, layout, initialize, first, piece);
      return absl::OkStatus();
    };
    begin = absl::Now();
    RETURN_IF_ERROR(window.Write(weights, make));
    rate.seconds += Seconds(begin);
    rate.elements += layout.num_elements();
    if (options.look != nullptr) RETURN_IF_ERROR(options.look(layer, weights));
  }
  return rate;
}

model::ModelConfig ModelOf7B() {
  model::ModelConfig config;
  config.vocab_size = 32000;
  config.hidden_size = 4096;
  config.num_layers = 32;
  config.num_heads = 32;
  config.num_kv_heads = 32;
  config.head_dim = 128;
  config.intermediate_size = 11008;
  config.position = model::PositionKind::kRotary;
  config.norm = ops::NormKind::kRmsNorm;
  config.activation = ops::ActivationKind::kSwiGlu;
  config.qkv_bias = config.attention_bias = config.mlp_bias = false;
  return config;
}

model::ModelConfig SmallModel() {
  model::ModelConfig config = ModelOf7B();
  config.vocab_size = 100;
  config.hidden_size = 64;
  config.num_layers = 3;
  config.num_heads = config.num_kv_heads = 2;
  config.head_dim = 32;
  config.intermediate_size = 96;
  return config;
}

void PrintWeightsHead() {
  std::printf("%8s  %7s  %10s  %8s  %12s  %8s\n", "to", "threads", "M elements", "s",
              "M elements/s", "fill, s");
}

absl::Status PrintWeights(const WeightsTableOptions& options, const char* name,
                          device::Device* device) {
  const int num_layers = static_cast<int>(options.config.num_layers);
  const int first_layers = std::min(options.first_layers, num_layers);
  const int all_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (const bool is_all : {false, true}) {
    const int num_threads = is_all ? all_threads : 1;
    ASSIGN_OR_RETURN(const WeightsRate rate,
                     MeasureWeights({.config = options.config,
                                     .num_layers = is_all ? num_layers : first_layers,
                                     .num_threads = num_threads,
                                     .device = device}));
    const double millions = static_cast<double>(rate.elements) / 1e6;
    std::printf("%8s  %7d  %10.1f  %8.1f  %12.1f  %8.1f\n", name, num_threads, millions,
                rate.seconds, millions / rate.seconds, rate.fill_seconds);
  }
  return absl::OkStatus();
}

}  // namespace megascale::bench
