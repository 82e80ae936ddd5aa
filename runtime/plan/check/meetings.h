// The instructions of all given ranks of a step as one list of nodes. Tells which nodes meet, and
// for which nodes each node waits. Used by CheckRendezvous and LaunchOrders.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::plan {

class Meetings {
 public:
  static constexpr int kNone = -1;

  // Pairs the communication of `plans` in the order of each channel. Requires: as CheckRendezvous;
  // the plans outlive the result. Errors: InvalidArgument - communication without its counterpart,
  // in another order or with other bytes.
  static absl::StatusOr<Meetings> Create(absl::Span<const RankPlan> plans);

  int num_nodes() const { return static_cast<int>(places_.size()); }
  const RankPlan& PlanOf(int node) const { return plans_[places_[node].plan]; }
  const Instruction& At(int node) const { return PlanOf(node).instructions[places_[node].index]; }
  std::string Text(int node) const;
  // The node of instruction `index` of `plans[plan]`.
  int NodeOf(size_t plan, size_t index) const { return first_[plan] + static_cast<int>(index); }

  // The meeting of a node; kNone: it meets nobody.
  int MeetingOf(int node) const { return meeting_[node]; }
  // By meeting: the nodes that end together.
  const std::vector<std::vector<int>>& members() const { return members_; }

  // Calls `visit(node)` for each node that must have ended before this one begins.
  template <typename Visit>
  void ForEachProducer(int node, Visit visit) const {
    for (const int producer : At(node).depends_on) visit(first_[places_[node].plan] + producer);
    if (previous_[node] != kNone) visit(previous_[node]);
  }
  // Runs the step with strict rendezvous: the members of a meeting end only once all have begun.
  // Returns the nodes in an order in which they end; the nodes of a meeting are adjacent. A node
  // that is missing from the result waits forever. Which nodes end does not depend on the order of
  // the run.
  std::vector<int> EndOrder() const;

 private:
  // An instruction of one of the given plans.
  struct Place {
    size_t plan = 0;
    size_t index = 0;
  };
  // Group name, channel, sender, receiver.
  using Link = std::tuple<std::string, std::string, int, int>;
  struct Traffic {
    std::vector<int> sends;
    std::vector<int> receives;
  };
  // Group name, channel.
  using Room = std::pair<std::string, std::string>;
  struct Gathering {
    std::vector<int> ranks;
    std::map<int, std::vector<int>> calls;  // by rank
  };

  explicit Meetings(absl::Span<const RankPlan> plans);
  absl::Status Match();
  absl::Status MatchTraffic(const Traffic& traffic);
  absl::Status MatchGathering(const Gathering& gathering);
  absl::Status CheckPair(int one, int other) const;
  void Meet(const std::vector<int>& nodes);

  absl::Span<const RankPlan> plans_;
  absl::flat_hash_set<int> given_;  // ranks
  std::vector<Place> places_;       // by node
  std::vector<int> first_;          // by plan: the node of its first instruction
  std::vector<int> meeting_;        // by node
  std::vector<int> previous_;       // by node: the previous node on its stream, or kNone
  std::vector<std::vector<int>> members_;
};

}  // namespace megascale::plan
