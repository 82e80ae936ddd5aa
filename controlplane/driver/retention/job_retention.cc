#include "controlplane/driver/retention/job_retention.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <tuple>

namespace megascale::driver {

std::vector<std::string> JobsToForget(const DriverState& state, const JobRetention& retention,
                                      absl::Time now) {
  struct Ended {
    int64_t unix_nanos = 0;
    std::string id;
    size_t bytes = 0;
  };
  std::vector<Ended> ended;
  for (const JobRecord& job : state.jobs()) {
    if (IsTerminal(job)) ended.push_back({job.ended_unix_nanos(), JobId(job), job.ByteSizeLong()});
  }
  std::sort(ended.begin(), ended.end(), [](const Ended& a, const Ended& b) {
    return std::tie(a.unix_nanos, a.id) > std::tie(b.unix_nanos, b.id);
  });
  std::vector<std::string> ids;
  size_t bytes = 0;
  for (size_t i = 0; i < ended.size(); ++i) {  // the newest first
    bytes += ended[i].bytes;
    const bool is_new = i < static_cast<size_t>(retention.newest);
    const bool is_young = absl::FromUnixNanos(ended[i].unix_nanos) + retention.age > now;
    if (bytes > retention.bytes || (!is_new && !is_young)) ids.push_back(ended[i].id);
  }
  std::reverse(ids.begin(), ids.end());
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
