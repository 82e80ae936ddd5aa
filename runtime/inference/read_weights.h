// Reads weights from storage into a device's memory. Threads: plain functions. Blocking: storage.
#pragma once

#include "absl/status/status.h"
#include "runtime/device/device.h"
#include "runtime/hugging_face/initial_weights.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/stream/stream.h"
#include "runtime/tensor/tensor.h"

namespace megascale::inference {

// Where weights go.
struct WeightsMemory {
  device::Device* device;
  stream::Stream* stream;
  tensor::Vector weights;  // all parameters of the layout, in its order: F64, F32 or BF16
};

// Overwrites the weights with those of `source`. Errors: those of InitialWeights::Read.
absl::Status ReadWeights(hugging_face::InitialWeights* source, const model::ChunkLayout& layout,
                         const WeightsMemory& memory);

}  // namespace megascale::inference
