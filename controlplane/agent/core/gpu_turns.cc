#include "controlplane/agent/core/gpu_turns.h"

#include <algorithm>
#include <utility>

namespace megascale::agent {
namespace {

// The tag of the field and the length of the sample.
constexpr size_t kFrameBytes = 4;

}  // namespace

size_t BytesInReport(const telemetry::v1::GpuSample& sample) {
  return sample.ByteSizeLong() + kFrameBytes;
}

void GpuTurns::Take(std::vector<telemetry::v1::GpuSample> read) {
  for (telemetry::v1::GpuSample& sample : read) {
    has_gpus_ = true;
    const int index = sample.index();
    while (BytesInReport(sample) > kBurstBytes && !sample.throttled_by().empty()) {
      sample.mutable_throttled_by()->RemoveLast();
    }
    if (waiting_.insert_or_assign(index, std::move(sample)).second) turns_.push_back(index);
  }
}

std::vector<telemetry::v1::GpuSample> GpuTurns::Next(absl::Duration now) {
  const double seconds = std::clamp(absl::ToDoubleSeconds(now - counted_), 0.0, 1.0);
  allowance_bytes_ =
      std::min(static_cast<double>(kBurstBytes), allowance_bytes_ + kBytesPerSecond * seconds);
  counted_ = now;
  std::vector<telemetry::v1::GpuSample> next;
  while (!turns_.empty()) {
    const auto sample = waiting_.find(turns_.front());
    const auto num_bytes = static_cast<double>(BytesInReport(sample->second));
    if (num_bytes > allowance_bytes_) break;
    allowance_bytes_ -= num_bytes;
    next.push_back(std::move(sample->second));
    waiting_.erase(sample);
    turns_.pop_front();
  }
  return next;
}

}  // namespace megascale::agent
