#include "runtime/diagnose/sampling/slow_outliers.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/base/median.h"

namespace megascale::diagnose {
namespace {

// Returns how many times longer most ranks compute than before; at least 1, because a rank is not
// slower where the others have become faster.
double CommonChange(absl::Span<const ComputeTime> times) {
  std::vector<double> ratios;
  for (const ComputeTime& time : times) {
    if (time.before > 0) ratios.push_back(time.now / time.before);
  }
  return std::max(1.0, base::UpperMedian(std::move(ratios)));
}

// Returns by the first rank of each data group how long its ranks compute now.
std::map<int, double> MedianOfGroups(const plan::Mesh& mesh, absl::Span<const ComputeTime> times) {
  std::map<int, std::vector<double>> of_group;
  for (const ComputeTime& time : times) {
    of_group[mesh.RankInGroup(plan::GroupKind::kData, time.rank, 0)].push_back(time.now);
  }
  std::map<int, double> medians;
  for (auto& [first, of_ranks] : of_group) medians[first] = base::UpperMedian(std::move(of_ranks));
  return medians;
}

}  // namespace

std::vector<int> SlowestRanks(const plan::Mesh& mesh, absl::Span<const ComputeTime> times) {
  const double common = CommonChange(times);
  const std::map<int, double> medians = MedianOfGroups(mesh, times);
  std::vector<std::pair<double, int>> lost;  // seconds of a step, negative
  for (const ComputeTime& time : times) {
    const int group = mesh.RankInGroup(plan::GroupKind::kData, time.rank, 0);
    const double expected = time.before > 0 ? common * time.before : medians.at(group);
    if (time.now >= kOutlierMin * expected) lost.emplace_back(expected - time.now, time.rank);
  }
  std::sort(lost.begin(), lost.end());
  std::vector<int> ranks;
  for (const auto& [seconds, rank] : lost) ranks.push_back(rank);
  return ranks;
}

}  // namespace megascale::diagnose
