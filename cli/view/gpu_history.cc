#include "cli/view/gpu_history.h"

#include <algorithm>
#include <iterator>

namespace megascale::cli {

void GpuHistory::Add(const telemetry::v1::Evidence& evidence) {
  Machine& machine = machines_.emplace_back();
  for (const telemetry::v1::MachineSample& sample : evidence.samples()) {
    int64_t step = -1;
    for (const telemetry::v1::ProcessSample& rank : sample.ranks()) {
      if (rank.job_id() == job_id_) step = std::max(step, rank.step());
    }
    if (step < 0) continue;
    machine.gpus.erase(machine.gpus.upper_bound(step), machine.gpus.end());
    machine.newest_step = step;
    if (sample.gpus().empty()) continue;
    machine.gpus[step] = {sample.gpus().begin(), sample.gpus().end()};
  }
}

int64_t GpuHistory::newest_step() const {
  int64_t newest = 0;
  for (const Machine& machine : machines_) newest = std::max(newest, machine.newest_step);
  return newest;
}

GpuSummary GpuHistory::At(int64_t step) const {
  std::vector<const telemetry::v1::GpuSample*> gpus;
  for (const Machine& machine : machines_) {
    const auto later = machine.gpus.lower_bound(step);
    if (later == machine.gpus.begin() || step > machine.newest_step) continue;
    for (const telemetry::v1::GpuSample& gpu : std::prev(later)->second) gpus.push_back(&gpu);
  }
  return SummaryOf(gpus);
}

}  // namespace megascale::cli
