// How long the initial weights of a model take on a device, layer by layer: made by threads of the
// host, and written through a device::HostWindow, as a rank does it.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device/device.h"
#include "runtime/model/config.h"
#include "runtime/tensor/tensor.h"

namespace megascale::bench {

struct WeightsOptions {
  model::ModelConfig config = {};
  int num_layers =
      1;  // the first ones; the embedding is among them, with all the output matrix too
  int num_threads = 1;
  device::Device* device = nullptr;
  // Called, if set, with the weights of each layer in the device's memory; this is not timed.
  std::function<absl::Status(int layer, const tensor::Vector& weights)> look = nullptr;
};

struct WeightsRate {
  int64_t elements = 0;
  double seconds = 0;
  double fill_seconds = 0;  // the same bytes set to a constant, through the same window
};

// Errors: ResourceExhausted - the device has no memory for a layer; Internal - it failed.
absl::StatusOr<WeightsRate> MeasureWeights(const WeightsOptions& options);

// The shape of Llama 2 7B.
model::ModelConfig ModelOf7B();
// A shape for devices that tests emulate.
model::ModelConfig SmallModel();

struct WeightsTableOptions {
  model::ModelConfig config = ModelOf7B();
  int first_layers = 2;  // that are also made with one thread
};

// Prints the head of a table, and the lines of a device: the first layers with one thread, and the
// whole model with all. Errors: as MeasureWeights.
void PrintWeightsHead();
absl::Status PrintWeights(const WeightsTableOptions& options, const char* name,
                          device::Device* device);

}  // namespace megascale::bench
