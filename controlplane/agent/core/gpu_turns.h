// Which GPUs of a machine a report shows. All samples of many GPUs do not fit into what an agent
// may send unasked, so the GPUs take turns: a report has those whose turn it is, and the driver
// keeps the newest sample of each. Pure. Threads: one at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "proto/agent.pb.h"

namespace megascale::agent {

class GpuTurns {
 public:
  // In any second, samples have at most the sum of both in bytes: half of
  // AgentCore::kUnaskedBytesMax. So 16 GPUs take turns in about 5 s, which is how often they are
  // read; in 8 s where no job runs, because reports are rarer then.
  static constexpr double kBytesPerSecond = 320;
  static constexpr size_t kBurstBytes = 192;

  // Takes what was read of all GPUs, in place of older samples that still wait; none: nothing was
  // read, so that nothing changes.
  void Take(std::vector<telemetry::v1::GpuSample> read);

  // Returns the samples for the report that is made now. A sample is returned once. Of one that is
  // too large the reasons for its low clocks are cut.
  std::vector<telemetry::v1::GpuSample> Next(absl::Duration now);

  // True if the machine has GPUs.
  bool has_gpus() const { return has_gpus_; }

 private:
  bool has_gpus_ = false;
  std::deque<int> turns_;                            // indices of GPUs, the next one first
  std::map<int, telemetry::v1::GpuSample> waiting_;  // by index
  double allowance_bytes_ = kBurstBytes;
  absl::Duration counted_ = -absl::InfiniteDuration();  // the allowance is that of this moment
};

// Returns the bytes that a sample takes in a report.
size_t BytesInReport(const telemetry::v1::GpuSample& sample);

}  // namespace megascale::agent
