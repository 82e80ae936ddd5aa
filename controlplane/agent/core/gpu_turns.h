// Which GPUs of a machine a report shows. The samples of many GPUs do not all fit into the bytes
// that an agent may send unasked, so the GPUs take turns: a report has the samples of the GPUs
// whose turn it is, and the driver keeps the newest sample of each. Pure. Threads: one at a time.
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
  // In any second, samples take at most kBytesPerSecond + kBurstBytes bytes, which is half of
  // AgentCore::kUnaskedBytesMax. So each of 16 GPUs has its turn within about 5 s, which is how
  // often the GPUs are read; within 8 s if no job runs, because reports are rarer then.
  static constexpr double kBytesPerSecond = 320;
  static constexpr size_t kBurstBytes = 192;

  // Takes the samples that were read from all GPUs, in place of older samples that still wait;
  // empty: nothing was read, and nothing changes. If a sample is too large, the last reasons for
  // its low clocks are left out.
  void Take(std::vector<telemetry::v1::GpuSample> read);

  // Returns the samples for the report that is made now. Each sample is returned once.
  std::vector<telemetry::v1::GpuSample> Next(absl::Duration now);

  // True if the machine has GPUs.
  bool has_gpus() const { return has_gpus_; }

 private:
  bool has_gpus_ = false;
  std::deque<int> turns_;                            // indices of GPUs, the next one first
  std::map<int, telemetry::v1::GpuSample> waiting_;  // by index
  double allowance_bytes_ = kBurstBytes;
  absl::Duration counted_ = -absl::InfiniteDuration();  // when the allowance was computed
};

// Returns the bytes that a sample takes in a report.
size_t BytesInReport(const telemetry::v1::GpuSample& sample);

}  // namespace megascale::agent
