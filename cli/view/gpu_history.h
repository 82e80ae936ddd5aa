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

  // Adds a machine's samples, oldest first. If the job went back to an earlier step, later steps of
  // older samples no longer count.
  void Add(const telemetry::v1::Evidence& evidence);

  // Returns a summary of the last samples before the step was completed, over the machines with
  // samples from before the completion and from after it.
  GpuSummary At(int64_t step) const;

  // Returns the newest completed step in the samples; 0: there are no samples.
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
