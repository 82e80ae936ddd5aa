#include "runtime/minder/testing/fault_generator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <utility>

namespace megascale::minder {
namespace {

struct FaultRow {
  const char* name;
  double frequency;                          // percent of all faults
  std::array<double, kNumGroups> indicated;  // percent of instances that show in the group
};

// Columns: CPU, GPU, PFC, throughput, disk, memory.
constexpr FaultRow kFaults[] = {
    {"ECC error", 38.9, {80.0, 65.7, 8.6, 45.7, 11.4, 57.1}},
    {"PCIe downgrading", 6.6, {0.0, 8.3, 100, 33.3, 8.3, 0.0}},
    {"NIC dropout", 5.7, {100, 100, 0.0, 100, 0.0, 100}},
    {"GPU card drop", 2.0, {75.0, 70.0, 5.0, 50.0, 20.0, 55.0}},
    {"NVLink error", 1.7, {83.3, 50.0, 16.7, 50.0, 0.0, 66.7}},
    {"AOC error", 0.9, {25.0, 25.0, 0.0, 25.0, 25.0, 25.0}},
    {"CUDA execution error", 14.6, {61.9, 57.1, 19.0, 33.3, 14.3, 61.9}},
    {"GPU execution error", 7.7, {50.0, 71.4, 14.3, 42.9, 21.4, 42.8}},
    {"HDFS error", 5.7, {57.1, 57.1, 0.0, 14.3, 0.0, 14.3}},
    {"machine unreachable", 6.0, {47.4, 63.2, 0.0, 53.6, 26.3, 15.8}},
};
constexpr double kOthersFrequency = 10.3;

struct MetricRow {
  const char* name;
  Group group;
  double calm;    // usual value, of its limits
  double faulty;  // what a fault makes of it
  double load;    // how much of a load change it shows
};

// The published seven, in their order; then those of has_all_groups.
constexpr MetricRow kMetrics[] = {
    {"PFC Tx packet rate", kPfc, 0.06, 0.45, 0.03},
    {"CPU usage", kCpu, 0.40, 0.08, 0.10},
    {"GPU duty cycle", kGpu, 0.92, 0.30, 0.10},
    {"GPU power draw", kGpu, 0.75, 0.25, 0.12},
    {"GPU graphics engine activity", kGpu, 0.80, 0.25, 0.12},
    {"GPU tensor activity", kGpu, 0.50, 0.10, 0.10},
    {"NVLink bandwidth", kThroughput, 0.55, 0.12, 0.12},
    {"disk usage", kDisk, 0.15, 0.60, 0.05},
    {"memory usage", kMemory, 0.50, 0.10, 0.05},
};
constexpr size_t kNumPublishedMetrics = 7;
constexpr size_t kNumPublishedGroups = 4;  // of these

constexpr double kNoise = 0.015;   // of each sample, beside the slow part
constexpr double kBias = 0.012;    // between machines
constexpr double kWobble = 0.02;   // of all machines, with the training step
constexpr double kMissing = 0.02;  // of samples
constexpr double kSpikes = 0.003;  // of samples, by up to this much either way:
constexpr double kSpikeHeight = 0.4;
constexpr double kGaps = 0.05;         // of machines measure nothing for up to 40 s
constexpr int kBurstSecondsMin = 5;    // of a healthy machine
constexpr int kBurstSecondsMax = 200;  // shorter than the continuity check
constexpr double kBurstsPerMachine = 0.25;
// Share of the way to the faulty value; the same for bursts and faults, so that they overlap.
constexpr double kStrengthMin = 0.3;
constexpr double kShortFaults = 0.05;  // of faults last less than the continuity check
constexpr int kFaultSecondsMin = 300;

class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}
  double Uniform() { return static_cast<double>(bits_() >> 11) * 0x1.0p-53; }
  bool Chance(double probability) { return Uniform() < probability; }
  int Below(int limit) { return static_cast<int>(Uniform() * limit); }
  // About normal, with deviation 1.
  double Normal() {
    double sum = -3;
    for (int i = 0; i < 6; ++i) sum += Uniform();
    return sum * std::sqrt(2.0);
  }

 private:
  std::mt19937_64 bits_;
};

FaultRow Others() {
  FaultRow others = {"others", kOthersFrequency, {}};
  double all = 0;
  for (const FaultRow& row : kFaults) all += row.frequency;
  for (const FaultRow& row : kFaults) {
    for (size_t group = 0; group < kNumGroups; ++group) {
      others.indicated[group] += row.indicated[group] * row.frequency / all;
    }
  }
  return others;
}

FaultRow ChooseFault(bool with_others, Random* random) {
  std::vector<FaultRow> rows(std::begin(kFaults), std::end(kFaults));
  if (with_others) rows.push_back(Others());
  double all = 0;
  for (const FaultRow& row : rows) all += row.frequency;
  double at = random->Uniform() * all;
  for (const FaultRow& row : rows) {
    at -= row.frequency;
    if (at < 0) return row;
  }
  return rows[0];
}

// What all machines do together: load changes and restarts. 1: as usual; 0: nothing.
std::vector<double> SharedLoad(Random* random) {
  std::vector<double> load(kTaskSeconds, 1.0);
  for (int change = random->Below(3); change > 0; --change) {
    const int from = random->Below(kTaskSeconds);
    const double by = 1 + 0.6 * (random->Uniform() - 0.5);
    for (int t = from; t < kTaskSeconds; ++t) load[static_cast<size_t>(t)] *= by;
  }
  if (random->Chance(0.2)) {
    const int from = random->Below(kTaskSeconds);
    const int to = std::min(kTaskSeconds, from + 20 + random->Below(40));
    for (int t = from; t < to; ++t) load[static_cast<size_t>(t)] = 0;
  }
  return load;
}

bool IsAt(const Spell& spell, int t) { return t >= spell.begin && t < spell.end; }

Spell MakeBurst(int machine, int num_groups, Random* random) {
  Spell burst;
  burst.machine = machine;
  burst.begin = random->Below(kTaskSeconds);
  burst.end = burst.begin + kBurstSecondsMin + random->Below(kBurstSecondsMax - kBurstSecondsMin);
  burst.shows[static_cast<size_t>(random->Below(num_groups))] = true;
  burst.strength = kStrengthMin + (1 - kStrengthMin) * random->Uniform();
  return burst;
}

Spell MakeFault(const FaultRow& row, size_t num_groups, Random* random) {
  Spell fault;
  fault.begin = 60 + random->Below(kTaskSeconds - 60 - kFaultSecondsMin);
  const bool is_short = random->Chance(kShortFaults);
  fault.end = is_short ? fault.begin + 60 + random->Below(120) : kTaskSeconds;
  for (size_t group = 0; group < num_groups; ++group) {
    fault.shows[group] = random->Chance(row.indicated[group] / 100);
  }
  fault.strength = kStrengthMin + (1 - kStrengthMin) * random->Uniform();
  return fault;
}

// What a machine measured of a metric, with samples missing.
std::vector<Sample> SamplesOf(const MetricRow& metric, const std::vector<double>& load,
                              const std::vector<Spell>& spells, Random* random) {
  const double bias = kBias * random->Normal();
  double slow = 0;
  const int gap = random->Chance(kGaps) ? random->Below(kTaskSeconds) : kTaskSeconds;
  const int gap_end = gap + 10 + random->Below(30);
  std::vector<Sample> samples;
  for (int t = 0; t < kTaskSeconds; ++t) {
    slow = 0.9 * slow + 0.3 * kNoise * random->Normal();
    const double shared = load[static_cast<size_t>(t)];
    double value =
        shared == 0 ? 0.02 : metric.calm + metric.load * (shared - 1) + kWobble * std::sin(t / 7.0);
    for (const Spell& spell : spells) {
      if (!IsAt(spell, t) || !spell.shows[static_cast<size_t>(metric.group)]) continue;
      value += spell.strength * (metric.faulty - value);
    }
    value += bias + slow + kNoise * random->Normal();
    if (random->Chance(kSpikes)) value += kSpikeHeight * (2 * random->Uniform() - 1);
    const bool is_missing = random->Chance(kMissing) || (t >= gap && t < gap_end);
    if (!is_missing) samples.push_back({.seconds = static_cast<double>(t), .value = value});
  }
  return samples;
}

}  // namespace

Task MakeTask(const TaskOptions& options) {
  Random random(options.seed * 7919 + 17);
  Task task;
  const size_t num_groups = options.has_all_groups ? kNumGroups : kNumPublishedGroups;
  const size_t num_metrics = options.has_all_groups ? std::size(kMetrics) : kNumPublishedMetrics;
  const std::vector<double> load = SharedLoad(&random);
  for (int machine = 0; machine < options.num_machines; ++machine) {
    if (!random.Chance(kBurstsPerMachine)) continue;
    task.spells.push_back(MakeBurst(machine, static_cast<int>(num_groups), &random));
  }
  if (options.has_fault) {
    const FaultRow row = ChooseFault(options.has_all_groups, &random);
    task.fault = row.name;
    task.faulty = random.Below(options.num_machines);
    Spell fault = MakeFault(row, num_groups, &random);
    fault.machine = task.faulty;
    task.begin = fault.begin;
    task.is_visible = fault.end - fault.begin >= kFaultSecondsMin &&
                      std::any_of(fault.shows.begin(), fault.shows.end(), [](bool b) { return b; });
    task.spells.push_back(fault);
  }
  std::vector<std::vector<Spell>> by_machine(static_cast<size_t>(options.num_machines));
  for (const Spell& spell : task.spells) {
    by_machine[static_cast<size_t>(spell.machine)].push_back(spell);
  }
  for (size_t m = 0; m < num_metrics && options.has_metrics; ++m) {
    MetricSeries series;
    series.name = kMetrics[m].name;
    for (const auto& of_machine : by_machine) {
      series.machines.push_back(
          Align(SamplesOf(kMetrics[m], load, of_machine, &random), {0, 1}, 0, kTaskSeconds));
    }
    task.metrics.push_back(std::move(series));
  }
  return task;
}

}  // namespace megascale::minder
