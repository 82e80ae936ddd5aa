// What the GPUs of a job's machines did in each of its newest steps, from the samples that agents
// keep. Pure. Threads: one owner.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/view/gpu_summary.h"
#include "proto/telemetry.pb.h"

namespace megascale::cli {

class GpuHistory {
 public:
  explicit GpuHistory(std::string job_id) : job_id_(std::move(job_id)) {}

  // Adds a machine's samples, oldest first. After a step back only the newer samples count.
  void Add(const telemetry::v1::Evidence& evidence);

  // Returns what was sampled last before the end of the step, on each machine whose samples reach
  // from before this step to its end.
  GpuSummary At(int64_t step) const;

  // Returns the newest step that a sample knows; 0: there are no samples.
  int64_t newest_step() const;

 private:
  struct Machine {
    std::map<int64_t, std::vector<telemetry::v1::GpuSample>> gpus;  // by newest completed step
    int64_t newest_step = 0;                                        // of all samples
  };
  std::string job_id_;
  std::vector<Machine> machines_;
};

}  // namespace megascale::cli
