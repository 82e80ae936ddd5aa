#include "runtime/diagnose/operation_graph.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace megascale::diagnose {

absl::StatusOr<OperationGraph> OperationGraph::Create(std::vector<OperationKind> kinds,
                                                      std::vector<Worker> workers,
                                                      std::vector<Operation> operations) {
  OperationGraph graph;
  graph.kinds_ = std::move(kinds);
  graph.workers_ = std::move(workers);
  graph.operations_ = std::move(operations);
  const size_t size = graph.operations_.size();
  std::vector<std::vector<int>> followers(size);
  std::vector<size_t> awaited(size);
  absl::flat_hash_map<int, std::vector<int>> meetings;
  std::vector<int> ready;
  for (size_t i = 0; i < size; ++i) {
    const Operation& operation = graph.operations_[i];
    for (const int earlier : operation.depends_on) {
      followers[static_cast<size_t>(earlier)].push_back(static_cast<int>(i));
    }
    awaited[i] = operation.depends_on.size();
    if (operation.meeting != kNoMeeting) meetings[operation.meeting].push_back(static_cast<int>(i));
    if (awaited[i] == 0) ready.push_back(static_cast<int>(i));
  }
  absl::flat_hash_map<int, size_t> num_started;
  for (size_t next = 0; next < ready.size(); ++next) {
    const int meeting = graph.operations_[static_cast<size_t>(ready[next])].meeting;
    std::vector<int> members = {ready[next]};
    if (meeting != kNoMeeting) {
      members = meetings[meeting];
      if (++num_started[meeting] < members.size()) continue;
    }
    const auto begin = static_cast<int>(graph.members_.size());
    graph.members_.insert(graph.members_.end(), members.begin(), members.end());
    graph.groups_.push_back({begin, static_cast<int>(graph.members_.size())});
    for (const int member : members) {
      for (const int follower : followers[static_cast<size_t>(member)]) {
        if (--awaited[static_cast<size_t>(follower)] == 0) ready.push_back(follower);
      }
    }
  }
  if (graph.members_.size() != size) {
    return absl::InvalidArgumentError(
        absl::StrCat(size - graph.members_.size(), " of ", size,
                     " operations wait for each other; expected an order in which a step can run"));
  }
  return graph;
}

double OperationGraph::Replay(const OperationTimes& times) const {
  MEGASCALE_CHECK(times.delay.size() == size() && times.duration.size() == size());
  std::vector<double> end(size());
  double step_end = 0;
  for (const Group& group : groups_) {
    double all_started = 0;
    for (int m = group.begin; m < group.end; ++m) {
      const auto i = static_cast<size_t>(members_[static_cast<size_t>(m)]);
      double start = 0;
      for (const int earlier : operations_[i].depends_on) {
        start = std::max(start, end[static_cast<size_t>(earlier)]);
      }
      all_started = std::max(all_started, start + times.delay[i]);
    }
    for (int m = group.begin; m < group.end; ++m) {
      const auto i = static_cast<size_t>(members_[static_cast<size_t>(m)]);
      end[i] = all_started + times.duration[i];
      if (operations_[i].ends_step) step_end = std::max(step_end, end[i]);
    }
  }
  return step_end;
}

std::vector<double> OperationGraph::DelaysOf(absl::Span<const double> start,
                                             absl::Span<const double> end) const {
  MEGASCALE_CHECK(start.size() == size() && end.size() == size());
  std::vector<double> delays(size());
  if (size() == 0) return delays;
  const double step_start = *std::min_element(start.begin(), start.end());
  for (size_t i = 0; i < size(); ++i) {
    double could_start = step_start;
    for (const int earlier : operations_[i].depends_on) {
      could_start = std::max(could_start, end[static_cast<size_t>(earlier)]);
    }
    delays[i] = std::max(0.0, start[i] - could_start);
  }
  return delays;
}

}  // namespace megascale::diagnose
