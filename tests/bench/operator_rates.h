// Times each operator of a device at the sizes of a model, and its copies: what ops_benchmark
// prints for the CPU, and gpu_benchmark for a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "runtime/device/device.h"
#include "runtime/tensor/tensor.h"

namespace megascale::bench {

struct OperatorSizes {
  int64_t tokens = 1024, seq = 128, hidden = 256, heads = 4, head_dim = 64;
  int64_t intermediate = 1024, vocabulary = 256, parameters = 3'000'000;
};

struct OperatorRate {
  enum class Unit { kFlops, kBytes };
  std::string name;
  Unit unit;
  double seconds;  // of one call
  double work;     // FLOP, or the fewest bytes that must move
  double per_second() const { return work / seconds; }
};

struct RatesOptions {
  device::Device* device = nullptr;
  tensor::DType dtype = tensor::DType::kF32;
  int threads = 1;       // of the host, for the CPU's operators
  double seconds = 0.1;  // of measurement for each operator
  OperatorSizes sizes = {};
};

// Calls `on_rate` after each measurement, in an order that does not change. Errors: Internal - the
// device failed. Requires: the device has memory for the tensors of one operator (CHECK).
absl::Status MeasureOperators(const RatesOptions& options,
                              const std::function<void(const OperatorRate&)>& on_rate);

}  // namespace megascale::bench
