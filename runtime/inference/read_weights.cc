#include "runtime/inference/read_weights.h"

#include <algorithm>
#include <vector>

#include "absl/types/span.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/format/box.h"
#include "runtime/device/host_window.h"

namespace megascale::inference {
namespace {

using tensor::DType;
using tensor::HostVector;
using tensor::Vector;

Vector Part(const Vector& whole, int64_t begin, int64_t count) {
  char* data = whole.as<char>() + begin * static_cast<int64_t>(tensor::SizeOf(whole.dtype));
  return {data, whole.dtype, count};
}

}  // namespace

absl::Status ReadWeights(hugging_face::InitialWeights* source, const model::ChunkLayout& layout,
                         const WeightsMemory& memory) {
  device::HostWindow window(memory.device, memory.stream);
  std::vector<float> buffer;
  for (const model::Parameter& parameter : layout.parameters()) {
    const checkpoint::Box whole = checkpoint::WholeBox(parameter.global_shape);
    const auto read = [&](int64_t first, const HostVector& piece) {
      const auto count = static_cast<size_t>(piece.size());
      if (piece.dtype() == DType::kF64) {
        return source->Read(parameter.name, whole, first,
                            absl::MakeSpan(piece.as<double>(), count));
      }
      if (piece.dtype() == DType::kF32) {
        return source->Read(parameter.name, whole, first, absl::MakeSpan(piece.as<float>(), count));
      }
      buffer.resize(count);
      absl::Status done = source->Read(parameter.name, whole, first, absl::MakeSpan(buffer));
      std::transform(buffer.begin(), buffer.end(), piece.as<tensor::BFloat16>(),
                     tensor::ToBFloat16);
      return done;
    };
    RETURN_IF_ERROR(window.Write(Part(memory.weights, parameter.offset, parameter.size), read));
  }
  return absl::OkStatus();
}

}  // namespace megascale::inference
