// Made-up tasks for the detector: the metrics of all machines of a job for 15 minutes, with at most
// one faulty machine. Faults, their frequency and the metrics that show them follow the published
// table (Deng et al., NSDI '25, table 1); what the table does not say is chosen here: how large
// deviations are, noise and spikes, bursts on healthy machines that look like a fault for less than
// four minutes, load changes and restarts of all machines, samples that are missing. Deterministic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/minder/aligned_series.h"

namespace megascale::minder {

inline constexpr int kTaskSeconds = 900;

// The groups of metrics in the table.
enum Group { kCpu, kGpu, kPfc, kThroughput, kDisk, kMemory };
inline constexpr size_t kNumGroups = 6;

// When a machine is not as usual: a fault, or a burst of a healthy machine.
struct Spell {
  int machine = 0;
  int begin = 0;  // seconds
  int end = 0;
  std::array<bool, kNumGroups> shows = {};
  double strength = 1;  // 1: all the way to the faulty value
};

struct Task {
  std::vector<MetricSeries> metrics;  // in order of priority
  int faulty = -1;                    // machine; -1: none
  std::string fault;                  // "ECC error"; empty: none
  int begin = 0;                      // second of the fault
  // The fault shows in at least one metric, for longer than the continuity check needs.
  bool is_visible = false;
  std::vector<Spell> spells;  // the fault, if there is one, is the last
};

struct TaskOptions {
  int num_machines = 32;
  bool has_fault = false;
  uint64_t seed = 1;
  // With metrics of disk and memory, and with the faults that the table calls "others". The table
  // does not say in what these show: here as the mean of all other faults.
  bool has_all_groups = false;
  bool has_metrics = true;  // false: only what happens, not what the machines measure
};

Task MakeTask(const TaskOptions& options);

}  // namespace megascale::minder
