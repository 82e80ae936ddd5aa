#include "runtime/telemetry/gpu_metrics.h"

#include <mutex>
#include <thread>
#include <utility>

#include "runtime/base/stop_signal.h"

namespace megascale::telemetry {

// Outlives the owner while a read hangs.
struct GpuMetrics::Shared {
  base::StopSignal stop;
  std::mutex mutex;
  std::vector<v1::GpuSample> newest;
};

GpuMetrics::GpuMetrics(ReadGpus read, absl::Duration interval)
    : shared_(std::make_shared<Shared>()) {
  if (read == nullptr) return;
  std::thread([shared = shared_, read = std::move(read), interval] {
    do {
      std::vector<v1::GpuSample> samples = read();
      const std::lock_guard<std::mutex> lock(shared->mutex);
      shared->newest = std::move(samples);
    } while (!shared->stop.WaitFor(interval));
  }).detach();
}

GpuMetrics::~GpuMetrics() { shared_->stop.Notify(); }

std::vector<v1::GpuSample> GpuMetrics::Take() {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  return std::exchange(shared_->newest, {});
}

}  // namespace megascale::telemetry
