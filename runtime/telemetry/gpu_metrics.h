// What the GPUs of a machine do, for its samples. Who can ask their driver
// (gpu/cuda/nvml_metrics.h) gives a function; a thread of its own calls it, because a driver that
// hangs must not stop the agent.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "proto/telemetry.pb.h"

namespace megascale::telemetry {

// Returns one sample of each GPU; none: there are no GPUs, or they cannot be asked. Blocking: some
// milliseconds for each GPU, or for ever.
using ReadGpus = std::function<std::vector<v1::GpuSample>()>;

// Threads: one owner.
class GpuMetrics {
 public:
  // The values change slowly, and a machine keeps samples of 15 minutes.
  static constexpr absl::Duration kInterval = absl::Seconds(5);

  // Starts the thread; without one if `read` is empty. The destructor does not wait for it: a read
  // that hangs goes on until the process ends.
  explicit GpuMetrics(ReadGpus read, absl::Duration interval = kInterval);
  ~GpuMetrics();
  GpuMetrics(const GpuMetrics&) = delete;
  GpuMetrics& operator=(const GpuMetrics&) = delete;

  // Returns the newest samples, once; none: nothing was read since the last call.
  std::vector<v1::GpuSample> Take();

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace megascale::telemetry
