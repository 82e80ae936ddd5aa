#include "runtime/plan/check/launch_order.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/plan/check/meetings.h"
#include "runtime/plan/check/rendezvous.h"

namespace megascale::plan {
namespace {

// Returns, by meeting, the time at which it begins. Requires: the step has no deadlock.
std::vector<int> BeginTimes(const Meetings& meetings) {
  std::vector<int> end(static_cast<size_t>(meetings.num_nodes()), 0);  // by node
  std::vector<int> times(meetings.members().size(), 0);
  const auto begin = [&](int node) {
    int time = 0;
    meetings.ForEachProducer(node, [&](int producer) { time = std::max(time, end[producer]); });
    return time;
  };
  for (const int node : meetings.EndOrder()) {
    const int meeting = meetings.MeetingOf(node);
    if (meeting == Meetings::kNone) {
      end[node] = begin(node) + 1;
      continue;
    }
    // At its first member the producers of all have ended.
    if (node == meetings.members()[meeting].front()) {
      for (const int member : meetings.members()[meeting]) {
        times[meeting] = std::max(times[meeting], begin(member));
      }
    }
    end[node] = times[meeting] + 1;
  }
  return times;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<int>>> LaunchOrders(absl::Span<const RankPlan> plans) {
  RETURN_IF_ERROR(CheckRendezvous(plans));
  ASSIGN_OR_RETURN(const Meetings meetings, Meetings::Create(plans));
  const std::vector<int> times = BeginTimes(meetings);
  std::vector<std::vector<int>> orders;
  for (size_t plan = 0; plan < plans.size(); ++plan) {
    std::vector<int>& order = orders.emplace_back();
    const auto place = [&](int index) {
      const int meeting = meetings.MeetingOf(meetings.NodeOf(plan, static_cast<size_t>(index)));
      return std::pair(times[meeting], meeting);
    };
    for (size_t i = 0; i < plans[plan].instructions.size(); ++i) {
      if (meetings.MeetingOf(meetings.NodeOf(plan, i)) == Meetings::kNone) continue;
      order.push_back(static_cast<int>(i));
    }
    std::sort(order.begin(), order.end(),
              [&](int one, int other) { return place(one) < place(other); });
  }
  return orders;
}

absl::Status CheckLaunchOrders(absl::Span<const RankPlan> plans,
                               absl::Span<const std::vector<int>> orders) {
  if (orders.size() != plans.size()) {
    return absl::InvalidArgumentError(absl::StrCat(orders.size(), " launch orders; expected ",
                                                   plans.size(), ", one for each plan"));
  }
  ASSIGN_OR_RETURN(const Meetings meetings, Meetings::Create(plans));
  // A launch waits for the end of the one before it, as for a dependency.
  std::vector<RankPlan> ordered(plans.begin(), plans.end());
  for (size_t plan = 0; plan < plans.size(); ++plan) {
    std::vector<Instruction>& instructions = ordered[plan].instructions;
    std::vector<bool> expected;
    for (size_t i = 0; i < instructions.size(); ++i) {
      expected.push_back(meetings.MeetingOf(meetings.NodeOf(plan, i)) != Meetings::kNone);
    }
    int previous = Meetings::kNone;
    for (const int index : orders[plan]) {
      const bool is_known = index >= 0 && index < static_cast<int>(instructions.size());
      if (!is_known || !expected[index]) {
        return absl::InvalidArgumentError(absl::StrCat(
            "rank ", plans[plan].rank, ": the launch order has ",
            is_known ? instructions[index].id.ToString() : absl::StrCat("index ", index),
            ", which meets nobody or was launched before"));
      }
      expected[index] = false;
      if (previous != Meetings::kNone) instructions[index].depends_on.push_back(previous);
      previous = index;
    }
    const auto missing = std::find(expected.begin(), expected.end(), true);
    if (missing != expected.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", plans[plan].rank, ": the launch order lacks ",
                       instructions[missing - expected.begin()].id.ToString()));
    }
  }
  return CheckRendezvous(ordered);
}

}  // namespace megascale::plan
