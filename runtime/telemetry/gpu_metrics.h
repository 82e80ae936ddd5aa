// What the GPUs of a machine do, for the machine's samples. The caller passes a function that asks
// the GPUs' driver (gpu/cuda/nvml_metrics.h). A separate thread calls this function, because a
// driver that hangs must not stop the agent.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "proto/telemetry.pb.h"

namespace megascale::telemetry {

// Returns one sample of each GPU; empty: there are no GPUs, or the driver does not answer.
// Blocking: some milliseconds for each GPU, or forever.
using ReadGpus = std::function<std::vector<v1::GpuSample>()>;

// Threads: one owner.
class GpuMetrics {
 public:
  // Every 5 s is enough, because the values change slowly, and a machine keeps samples of 15
  // minutes.
  static constexpr absl::Duration kInterval = absl::Seconds(5);

  // Starts the thread, unless `read` is empty. The destructor does not wait for the thread; a read
  // that hangs stays in it until the process ends.
  explicit GpuMetrics(ReadGpus read, absl::Duration interval = kInterval);
  ~GpuMetrics();
  GpuMetrics(const GpuMetrics&) = delete;
  GpuMetrics& operator=(const GpuMetrics&) = delete;

  // Returns the newest samples, each only once; empty: nothing was read since the last call.
  std::vector<v1::GpuSample> Take();

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace megascale::telemetry
