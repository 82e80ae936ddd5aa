// The made-up tasks follow the published table, and are as hard as they say.
#include "runtime/minder/testing/fault_generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace megascale::minder {
namespace {

constexpr uint64_t kSeeds = 2000;
// Limit of the deviations from a share p among n draws, in standard deviations.
constexpr double kSigmas = 4;

double BoundOf(double p, double n) { return kSigmas * std::sqrt(p * (1 - p) / n) + 1e-9; }

// Deng et al., NSDI '25, table 1, in percent: the frequency, and which instances each group shows.
// Written down a second time, so that a slip of the pen in either is found.
struct Published {
  double frequency;
  std::array<double, kNumGroups> cpu_gpu_pfc_throughput_disk_memory;
};

const std::map<std::string, Published>& Table() {
  static const auto* const table = new std::map<std::string, Published>{
      {"AOC error", {0.9, {25, 25, 0, 25, 25, 25}}},
      {"CUDA execution error", {14.6, {61.9, 57.1, 19, 33.3, 14.3, 61.9}}},
      {"ECC error", {38.9, {80, 65.7, 8.6, 45.7, 11.4, 57.1}}},
      {"GPU card drop", {2, {75, 70, 5, 50, 20, 55}}},
      {"GPU execution error", {7.7, {50, 71.4, 14.3, 42.9, 21.4, 42.8}}},
      {"HDFS error", {5.7, {57.1, 57.1, 0, 14.3, 0, 14.3}}},
      {"NIC dropout", {5.7, {100, 100, 0, 100, 0, 100}}},
      {"NVLink error", {1.7, {83.3, 50, 16.7, 50, 0, 66.7}}},
      {"PCIe downgrading", {6.6, {0, 8.3, 100, 33.3, 8.3, 0}}},
      {"machine unreachable", {6, {47.4, 63.2, 0, 53.6, 26.3, 15.8}}},
  };
  return *table;
}

struct Instances {
  int count = 0;
  std::array<int, kNumGroups> shown = {};
};

std::map<std::string, Instances> InstancesOf(bool has_all_groups) {
  std::map<std::string, Instances> instances;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Task task = MakeTask({.num_machines = 1,
                                .has_fault = true,
                                .seed = seed,
                                .has_all_groups = has_all_groups,
                                .has_metrics = false});
    Instances& of_fault = instances[task.fault];
    ++of_fault.count;
    for (size_t group = 0; group < kNumGroups; ++group) {
      of_fault.shown[group] += task.spells.back().shows[group] ? 1 : 0;
    }
  }
  return instances;
}

void ExpectLikeTheTable(const std::map<std::string, Instances>& instances, double frequencies,
                        size_t num_groups) {
  for (const auto& [fault, published] : Table()) {
    ASSERT_TRUE(instances.contains(fault)) << fault;
    const Instances& found = instances.at(fault);
    const double frequency = published.frequency / frequencies;
    EXPECT_NEAR(static_cast<double>(found.count) / kSeeds, frequency, BoundOf(frequency, kSeeds))
        << fault;
    for (size_t group = 0; group < num_groups; ++group) {
      const double share = published.cpu_gpu_pfc_throughput_disk_memory[group] / 100;
      EXPECT_NEAR(static_cast<double>(found.shown[group]) / found.count, share,
                  BoundOf(share, found.count))
          << fault << ", group " << group;
    }
  }
}

TEST(FaultGeneratorTest, FaultsAndWhatTheyShowAreAsFrequentAsPublished) {
  const auto instances = InstancesOf(false);
  EXPECT_EQ(instances.size(), Table().size());
  ExpectLikeTheTable(instances, 89.8, 4);
  for (const auto& [fault, found] : instances) {
    EXPECT_EQ(found.shown[kDisk] + found.shown[kMemory], 0) << "no published metric shows them";
  }
}

TEST(FaultGeneratorTest, AllGroupsHaveDiskMemoryAndTheOtherFaults) {
  const auto instances = InstancesOf(true);
  ExpectLikeTheTable(instances, 100.1, kNumGroups);
  ASSERT_TRUE(instances.contains("others"));
  EXPECT_NEAR(instances.at("others").count / 2000.0, 0.103, BoundOf(0.103, kSeeds));
  const Task task = MakeTask({.num_machines = 1, .has_all_groups = true});
  EXPECT_EQ(task.metrics.size(), 9u);
}

TEST(FaultGeneratorTest, TheSameSeedGivesTheSameTask) {
  const Task task = MakeTask({.num_machines = 4, .has_fault = true, .seed = 9});
  const Task again = MakeTask({.num_machines = 4, .has_fault = true, .seed = 9});
  EXPECT_EQ(task.metrics[3].machines, again.metrics[3].machines);
  EXPECT_EQ(task.faulty, again.faulty);
  EXPECT_EQ(MakeTask({.num_machines = 4, .has_fault = false, .seed = 9}).faulty, -1);
}

TEST(FaultGeneratorTest, MostFaultsShowAndSomeDoNot) {
  int num_visible = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    num_visible += MakeTask({.num_machines = 1, .has_fault = true, .seed = seed}).is_visible;
  }
  EXPECT_GT(num_visible, 25);
  EXPECT_LT(num_visible, 40);
}

// A burst of a healthy machine may be as strong as a fault, and a fault as weak as a burst; only
// the time tells them apart.
TEST(FaultGeneratorTest, BurstsAreAsStrongAsFaultsAndShorter) {
  std::vector<double> bursts;
  std::vector<double> faults;
  int num_short = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Task task =
        MakeTask({.num_machines = 4, .has_fault = true, .seed = seed, .has_metrics = false});
    for (size_t i = 0; i < task.spells.size(); ++i) {
      const Spell& spell = task.spells[i];
      const bool is_fault = i + 1 == task.spells.size();
      (is_fault ? faults : bursts).push_back(spell.strength);
      EXPECT_TRUE(is_fault || spell.end - spell.begin < 240) << seed;
      num_short += is_fault && spell.end - spell.begin < 240 ? 1 : 0;
    }
  }
  EXPECT_GT(bursts.size(), 200u);
  for (const std::vector<double>& strengths : {bursts, faults}) {
    const auto [least, most] = std::minmax_element(strengths.begin(), strengths.end());
    EXPECT_LT(*least, 0.35);
    EXPECT_GE(*least, 0.3);
    EXPECT_GT(*most, 0.95);
    EXPECT_LE(*most, 1);
  }
  EXPECT_NEAR(num_short / 300.0, 0.05, BoundOf(0.05, 300)) << "these end too soon to be found";
}

double MeanOf(absl::Span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

const MetricSeries& GpuDutyCycle(const Task& task) { return task.metrics[2]; }

// All machines stop at a restart: 0.02 of the limit, where 0.92 is usual and 0.3 is faulty.
TEST(FaultGeneratorTest, ARestartStopsAllMachinesAtOnce) {
  int num_restarts = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Task task = MakeTask({.num_machines = 4, .seed = seed});
    std::array<int, 5> seconds = {};  // by the number of machines that stand still
    for (size_t t = 0; t < kTaskSeconds; ++t) {
      size_t still = 0;
      for (const auto& machine : GpuDutyCycle(task).machines) still += machine[t] < 0.14 ? 1 : 0;
      ++seconds[still];
    }
    if (seconds[4] >= 10) ++num_restarts;
    // Missing seconds have the nearest value, so that machines differ for some seconds.
    EXPECT_LE(seconds[1] + seconds[2] + seconds[3], 45) << seed;
  }
  EXPECT_NEAR(num_restarts / 100.0, 0.2, BoundOf(0.2, 100));
}

TEST(FaultGeneratorTest, LoadChangesMoveAllMachinesTheSameWay) {
  int num_changes = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Task task = MakeTask({.num_machines = 16, .seed = seed});
    std::vector<double> moves;  // of each machine, from the first third to the last
    for (const std::vector<float>& machine : GpuDutyCycle(task).machines) {
      moves.push_back(MeanOf(absl::MakeConstSpan(machine).last(300)) -
                      MeanOf(absl::MakeConstSpan(machine).first(300)));
    }
    std::vector<double> sorted = moves;
    std::sort(sorted.begin(), sorted.end());
    if (std::abs(sorted[8]) < 0.012) continue;
    ++num_changes;
    const auto num_up = std::count_if(moves.begin(), moves.end(), [](double m) { return m > 0; });
    EXPECT_GE(std::max<int64_t>(num_up, 16 - num_up), 13) << seed;
  }
  EXPECT_GT(num_changes, 5);
}

// A second without a sample has the value of its neighbour; noise makes no two values equal.
TEST(FaultGeneratorTest, SamplesAndWholeStretchesAreMissing) {
  int num_series = 0;
  int num_gaps = 0;
  int64_t num_missing = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    for (const MetricSeries& metric : MakeTask({.num_machines = 4, .seed = seed}).metrics) {
      for (const std::vector<float>& values : metric.machines) {
        int longest = 0;
        int run = 0;
        for (size_t t = 1; t < values.size(); ++t) {
          const bool is_clamped = values[t] <= 0 || values[t] >= 1;
          run = values[t] == values[t - 1] && !is_clamped ? run + 1 : 0;
          num_missing += run > 0 ? 1 : 0;
          longest = std::max(longest, run);
        }
        ++num_series;
        num_gaps += longest >= 5 ? 1 : 0;  // half of a gap: it is filled from both sides
      }
    }
  }
  EXPECT_NEAR(static_cast<double>(num_gaps) / num_series, 0.05, BoundOf(0.05, num_series));
  const double missing = static_cast<double>(num_missing) / (900.0 * num_series);
  EXPECT_GT(missing, 0.015);
  EXPECT_LT(missing, 0.03);
}

}  // namespace
}  // namespace megascale::minder
