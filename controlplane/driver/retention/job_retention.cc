#include "controlplane/driver/retention/job_retention.h"

#include <algorithm>
#include <set>
#include <utility>

namespace megascale::driver {

std::vector<std::string> JobsToForget(const DriverState& state, const JobRetention& retention,
                                      absl::Time now) {
  if (state.jobs_size() <= retention.newest) return {};
  std::vector<std::pair<int64_t, std::string>> ended;
  for (const JobRecord& job : state.jobs()) {
    if (IsTerminal(job)) ended.emplace_back(job.ended_unix_nanos(), JobId(job));
  }
  std::sort(ended.begin(), ended.end());
  std::vector<std::string> ids;
  for (size_t i = 0; i + static_cast<size_t>(retention.newest) < ended.size(); ++i) {
    if (absl::FromUnixNanos(ended[i].first) + retention.age <= now) ids.push_back(ended[i].second);
  }
  return ids;
}

std::vector<std::string> NodesToForget(const DriverState& state, absl::Time now) {
  std::set<std::string> old;
  for (const NodeRecord& node : state.nodes()) {
    if (node.alive() || node.evicted() || node.spare()) continue;
    const int64_t lost = node.lost_unix_nanos();
    const absl::Duration age = node.has_quarantine() ? kLostInQuarantineAge : kLostNodeAge;
    if (lost != 0 && absl::FromUnixNanos(lost) + age <= now) {
      old.insert(node.hello().node_id());
    }
  }
  for (const JobRecord& job : state.jobs()) {
    if (old.empty()) break;
    if (!HoldsSlots(job)) continue;
    for (const auto& placement : job.placements()) old.erase(placement.node_id());
  }
  return {old.begin(), old.end()};
}

}  // namespace megascale::driver
