#include "runtime/diagnose/stall.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/plan/operation.h"

namespace megascale::diagnose {
namespace {

using plan::Instruction;
using plan::RankPlan;

// An instruction of a rank's present step.
struct Place {
  int rank = 0;
  int index = 0;
  auto operator<=>(const Place&) const = default;
};

// Returns the plan by which a rank of this position goes on.
const RankPlan& PlanAt(const RankPlan& of_step, const RankPosition& position) {
  return position.evaluation_plan == nullptr ? of_step : *position.evaluation_plan;
}

// Where a member of a meeting stands, seen from one step.
enum class Presence { kAbsent, kInside, kLeft, kUnknown };

class Walk {
 public:
  Walk(absl::Span<const RankPlan> plans, absl::Span<const RankPosition> positions)
      : plans_(plans), positions_(positions.begin(), positions.end()) {
    MEGASCALE_CHECK(plans.size() == positions.size());
    earlier_.resize(plans.size());
    indices_.resize(plans.size());
    fronts_.resize(plans.size());
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      if (positions_[rank].known) Prepare(rank);
    }
  }

  StallVerdict Run() && {
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      for (const int index : fronts_[rank]) Visit({static_cast<int>(rank), index});
    }
    CountWaiting();
    StallVerdict verdict;
    Choose(&verdict);
    for (const auto& [rank, waiting] : waiting_) {
      if (rank != verdict.root.rank) verdict.waiting.push_back(waiting);
    }
    return verdict;
  }

 private:
  // What an instruction that has not ended waits for: the places of other ranks, or a root.
  struct Node {
    std::vector<Place> waits_for;
    std::vector<int> roots;  // indices
  };

  void Prepare(size_t rank) {
    RankPosition& position = positions_[rank];
    MEGASCALE_CHECK(position.states.size() == PlanOf(rank).instructions.size());
    const auto has_ended = [](InstructionState state) { return state == InstructionState::kEnded; };
    if (std::all_of(position.states.begin(), position.states.end(), has_ended)) {
      position.batch = 0;
      position.evaluation_plan = nullptr;
      position.states.assign(plans_[rank].instructions.size(), InstructionState::kNotBegun);
      ++position.step;
    }
    const std::vector<Instruction>& instructions = PlanOf(rank).instructions;
    std::array<int, plan::kNumStreamKinds> last;
    last.fill(-1);
    earlier_[rank].resize(instructions.size());
    for (size_t i = 0; i < instructions.size(); ++i) {
      indices_[rank].emplace(instructions[i].id.packed(), static_cast<int>(i));
      earlier_[rank][i] = instructions[i].depends_on;
      int& previous = last[static_cast<size_t>(instructions[i].stream)];
      if (previous >= 0) earlier_[rank][i].push_back(previous);
      previous = static_cast<int>(i);
    }
    for (size_t i = 0; i < instructions.size(); ++i) {
      if (has_ended(position.states[i])) continue;
      const bool can_begin =
          std::all_of(earlier_[rank][i].begin(), earlier_[rank][i].end(),
                      [&](int e) { return has_ended(position.states[static_cast<size_t>(e)]); });
      if (can_begin) fronts_[rank].push_back(static_cast<int>(i));
    }
  }

  const RankPlan& PlanOf(size_t rank) const { return PlanAt(plans_[rank], positions_[rank]); }
  const RankPosition& PositionOf(int rank) const { return positions_[static_cast<size_t>(rank)]; }
  const Instruction& At(Place place) const {
    return PlanOf(static_cast<size_t>(place.rank)).instructions[static_cast<size_t>(place.index)];
  }
  InstructionState StateAt(Place place) const {
    return PositionOf(place.rank).states[static_cast<size_t>(place.index)];
  }

  // Returns the ranks of an instruction's meeting, with the id that it has on each.
  std::vector<std::pair<int, plan::InstructionId>> MembersOf(Place place) const {
    const Instruction& instruction = At(place);
    const plan::Mesh& mesh = plans_[static_cast<size_t>(place.rank)].mesh;
    std::vector<std::pair<int, plan::InstructionId>> members;
    if (plan::IsTransfer(instruction.kind())) {
      members.emplace_back(place.rank, instruction.id);
      members.emplace_back(mesh.RankInGroup(instruction.group, place.rank, instruction.peer),
                           instruction.id.OtherEnd());
      return members;
    }
    for (const int rank : mesh.GroupOf(instruction.group, place.rank).ranks) {
      members.emplace_back(rank, instruction.id);
    }
    return members;
  }

  // Returns where a rank stands in an instruction of the step or batch in which `other` stands, and
  // its place in the rank's plan.
  std::pair<Presence, Place> PresenceOf(int rank, plan::InstructionId id,
                                        const RankPosition& other) const {
    const RankPosition& position = PositionOf(rank);
    if (!position.known) return {Presence::kUnknown, {rank, -1}};
    const std::pair<int64_t, int64_t> its = {position.step, position.batch};
    const std::pair<int64_t, int64_t> wanted = {other.step, other.batch};
    if (its > wanted) return {Presence::kLeft, {rank, -1}};
    if (its < wanted) return {Presence::kAbsent, {rank, -1}};
    const auto found = indices_[static_cast<size_t>(rank)].find(id.packed());
    if (found == indices_[static_cast<size_t>(rank)].end()) return {Presence::kUnknown, {rank, -1}};
    const Place place = {rank, found->second};
    switch (StateAt(place)) {
      case InstructionState::kNotBegun:
        return {Presence::kAbsent, place};
      case InstructionState::kRuns:
        return {Presence::kInside, place};
      case InstructionState::kEnded:
        return {Presence::kLeft, place};
    }
    return {Presence::kUnknown, place};
  }

  int AddRoot(StallRoot root) {
    for (size_t i = 0; i < roots_.size(); ++i) {
      if (roots_[i].cause == root.cause && roots_[i].rank == root.rank &&
          roots_[i].instruction == root.instruction && roots_[i].members == root.members) {
        return static_cast<int>(i);
      }
    }
    roots_.push_back(std::move(root));
    return static_cast<int>(roots_.size()) - 1;
  }

  // Finds out why a front does not end. Each front of every rank is visited once.
  void Visit(Place place) {
    Node& node = nodes_[place];
    const Instruction& instruction = At(place);
    const int64_t step = PositionOf(place.rank).step;
    const bool runs = StateAt(place) == InstructionState::kRuns;
    if (!runs || instruction.group == plan::GroupKind::kNone) {
      node.roots.push_back(AddRoot({.cause = runs ? StallCause::kRuns : StallCause::kNotBegun,
                                    .rank = place.rank,
                                    .instruction = instruction.id,
                                    .step = step}));
      return;
    }
    WaitingRank waiting = {.rank = place.rank, .instruction = instruction.id, .waits_for = {}};
    std::vector<int> members;
    std::vector<int> inside;
    for (const auto& [rank, id] : MembersOf(place)) {
      members.push_back(rank);
      const auto [presence, there] = PresenceOf(rank, id, PositionOf(place.rank));
      if (presence == Presence::kInside) inside.push_back(rank);
      if (presence != Presence::kAbsent && presence != Presence::kUnknown) continue;
      waiting.waits_for.push_back(rank);
      if (presence == Presence::kAbsent) {
        node.waits_for.push_back(there);
      } else {
        node.roots.push_back(AddRoot({.cause = StallCause::kNoTrace, .rank = rank, .step = step}));
      }
    }
    if (waiting.waits_for.empty()) VisitExchange(place, {members, inside}, &node, &waiting);
    if (!waiting.waits_for.empty()) AddWaiting(waiting);
  }

  struct Attendance {
    std::vector<int> members;
    std::vector<int> inside;  // those that have not left
  };

  // All members have come. In a pass, ranks that wait in an exchange wait for those that compute
  // or are in an earlier one.
  void VisitExchange(Place place, const Attendance& attendance, Node* node, WaitingRank* waiting) {
    const std::vector<int>& inside = attendance.inside;
    const Instruction& instruction = At(place);
    const int64_t step = PositionOf(place.rank).step;
    if (plan::IsPass(instruction.kind())) {
      if (PositionOf(place.rank).piece == 0) {
        node->roots.push_back(AddRoot({.cause = StallCause::kRuns,
                                       .rank = place.rank,
                                       .instruction = instruction.id,
                                       .step = step}));
        return;
      }
      for (const int rank : inside) {
        if (PositionOf(rank).piece >= PositionOf(place.rank).piece) continue;
        waiting->waits_for.push_back(rank);
        node->waits_for.push_back(
            {rank, indices_[static_cast<size_t>(rank)].at(instruction.id.packed())});
      }
      if (!waiting->waits_for.empty()) return;
    }
    std::vector<int> members = attendance.members;
    std::sort(members.begin(), members.end());
    const bool one_is_behind = members.size() > 2 && inside.size() == 1;
    node->roots.push_back(AddRoot({.cause = StallCause::kExchange,
                                   .rank = one_is_behind ? inside.front() : -1,
                                   .instruction = instruction.id.MessageId(),
                                   .step = step,
                                   .members = std::move(members)}));
    for (const int rank : inside) {
      if (rank != place.rank) waiting->waits_for.push_back(rank);
    }
    if (waiting->waits_for.empty()) waiting->waits_for.push_back(place.rank);
  }

  // Keeps for each rank its first front in the plan.
  void AddWaiting(const WaitingRank& waiting) { waiting_.try_emplace(waiting.rank, waiting); }

  // Returns the fronts that must end before the place can begin.
  std::vector<Place> FrontsBefore(Place place) const {
    const auto rank = static_cast<size_t>(place.rank);
    std::vector<Place> found;
    if (place.index < 0) {  // of a later step or batch
      for (const int front : fronts_[rank]) found.push_back({place.rank, front});
      return found;
    }
    std::set<int> seen = {place.index};
    std::vector<int> open = {place.index};
    while (!open.empty()) {
      const int index = open.back();
      open.pop_back();
      bool is_front = true;
      for (const int earlier : earlier_[rank][static_cast<size_t>(index)]) {
        if (StateAt({place.rank, earlier}) == InstructionState::kEnded) continue;
        is_front = false;
        if (seen.insert(earlier).second) open.push_back(earlier);
      }
      if (is_front) found.push_back({place.rank, index});
    }
    return found;
  }

  // Counts for each root the ranks from which waiting leads there.
  void CountWaiting() {
    const std::vector<std::vector<int>> explained_by = ExplainExchanges();
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      std::set<int> reached;
      std::set<Place> seen;
      std::vector<Place> open;
      for (const int front : fronts_[rank]) open.push_back({static_cast<int>(rank), front});
      while (!open.empty()) {
        const Place place = open.back();
        open.pop_back();
        if (!seen.insert(place).second) continue;
        const auto node = nodes_.find(place);
        if (node == nodes_.end()) continue;
        for (const int root : node->second.roots) {
          const std::vector<int>& causes = explained_by[static_cast<size_t>(root)];
          reached.insert(causes.begin(), causes.end());
        }
        for (const Place awaited : node->second.waits_for) {
          for (const Place front : FrontsBefore(awaited)) open.push_back(front);
        }
      }
      AddWaitingRank(static_cast<int>(rank), reached);
    }
    std::vector<StallRoot> kept;
    for (size_t i = 0; i < roots_.size(); ++i) {
      if (explained_by[i].front() == static_cast<int>(i)) kept.push_back(std::move(roots_[i]));
    }
    roots_ = std::move(kept);
  }

  // `rank` waits for these roots. All roots of a rank count together.
  void AddWaitingRank(int rank, const std::set<int>& reached) {
    std::set<int> ranks;
    for (const int root : reached) ranks.insert(roots_[static_cast<size_t>(root)].rank);
    for (size_t i = 0; i < roots_.size(); ++i) {
      StallRoot& root = roots_[i];
      const bool waits = root.rank < 0 ? reached.count(static_cast<int>(i)) > 0
                                       : ranks.count(root.rank) > 0 && root.rank != rank;
      root.num_waiting += waits ? 1 : 0;
    }
  }

  bool IsSilent(int rank) const {
    return rank >= 0 && PositionOf(rank).silent_seconds.value_or(0) >= kSilentSecondsMin;
  }

  // An exchange that does not end is explained by members that are stuck elsewhere, or silent.
  // Returns by root those that explain it: itself, or roots of its members.
  std::vector<std::vector<int>> ExplainExchanges() {
    std::map<int, std::vector<int>> stuck;  // by rank: roots
    for (size_t i = 0; i < roots_.size(); ++i) {
      if (roots_[i].cause != StallCause::kExchange) {
        stuck[roots_[i].rank].push_back(static_cast<int>(i));
      }
    }
    std::vector<std::vector<int>> explained_by(roots_.size());
    for (size_t i = 0; i < roots_.size(); ++i) {
      for (const int member : roots_[i].members) {
        const auto found = stuck.find(member);
        if (found != stuck.end()) {
          explained_by[i].insert(explained_by[i].end(), found->second.begin(), found->second.end());
        }
        if (IsSilent(member)) roots_[i].rank = member;
      }
      if (explained_by[i].empty()) explained_by[i].push_back(static_cast<int>(i));
    }
    return explained_by;
  }

  void Choose(StallVerdict* verdict) {
    std::stable_sort(roots_.begin(), roots_.end(), [&](const StallRoot& a, const StallRoot& b) {
      if (IsSilent(a.rank) != IsSilent(b.rank)) return IsSilent(a.rank);
      if (a.num_waiting != b.num_waiting) return a.num_waiting > b.num_waiting;
      return a.cause == StallCause::kRuns && b.cause != StallCause::kRuns;
    });
    std::vector<StallRoot> of_other_ranks;
    for (size_t i = 1; i < roots_.size(); ++i) {
      const bool is_same = roots_[i].rank >= 0 && roots_[i].rank == roots_.front().rank;
      if (!is_same) of_other_ranks.push_back(roots_[i]);
    }
    if (roots_.empty()) return;
    const bool is_silent = IsSilent(roots_.front().rank);
    const bool is_told_apart = of_other_ranks.empty() ||
                               (is_silent && !IsSilent(of_other_ranks.front().rank)) ||
                               roots_.front().num_waiting > of_other_ranks.front().num_waiting;
    verdict->is_silent = is_silent;
    if (is_told_apart) {
      verdict->root = roots_.front();
      verdict->other_roots = std::move(of_other_ranks);
    } else {
      verdict->other_roots = roots_;
    }
  }

  const absl::Span<const RankPlan> plans_;
  std::vector<RankPosition> positions_;
  std::vector<std::vector<std::vector<int>>> earlier_;      // by rank and instruction
  std::vector<std::unordered_map<uint64_t, int>> indices_;  // by rank: of instructions, by id
  std::vector<std::vector<int>>
      fronts_;                   // by rank: instructions that could begin and have not ended
  std::map<Place, Node> nodes_;  // of fronts
  std::vector<StallRoot> roots_;
  std::map<int, WaitingRank> waiting_;  // by rank
};

}  // namespace

StallVerdict ExplainStall(absl::Span<const plan::RankPlan> plans,
                          absl::Span<const RankPosition> positions) {
  return Walk(plans, positions).Run();
}

std::optional<plan::InstructionId> StandsAt(absl::Span<const plan::RankPlan> plans,
                                            absl::Span<const RankPosition> positions, int rank) {
  const auto index = static_cast<size_t>(rank);
  if (rank < 0 || index >= positions.size() || !positions[index].known) return std::nullopt;
  const std::vector<Instruction>& instructions =
      PlanAt(plans[index], positions[index]).instructions;
  const std::vector<InstructionState>& states = positions[index].states;
  for (const InstructionState wanted : {InstructionState::kRuns, InstructionState::kNotBegun}) {
    const auto found = std::find(states.begin(), states.end(), wanted);
    if (found != states.end()) {
      return instructions[static_cast<size_t>(found - states.begin())].id;
    }
  }
  return plans[index].instructions.front().id;  // of the next step
}

std::string StepText(plan::InstructionId instruction, int64_t step) {
  const bool is_evaluation = plan::OperationOf(instruction.operation()).for_evaluation;
  return absl::StrCat(is_evaluation ? "the evaluation after step " : "step ", step);
}

std::optional<std::vector<int>> Witnesses(const StallVerdict& verdict,
                                          absl::Span<const int> machine_of) {
  const StallRoot& root = verdict.root;
  if (root.cause != StallCause::kExchange || root.rank < 0 || verdict.is_silent) {
    return std::nullopt;
  }
  const auto number_of = [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    return index < machine_of.size() ? machine_of[index] : -1;
  };
  const int own = number_of(root.rank);
  std::set<int> others;
  bool is_alone = own >= 0;
  for (const int member : root.members) {
    const int machine = number_of(member);
    if (member == root.rank || (machine >= 0 && machine == own)) continue;
    is_alone = false;
    if (machine >= 0) others.insert(machine);
  }
  if (is_alone) return std::nullopt;
  return std::vector<int>(others.begin(), others.end());
}

std::optional<StuckMachine> MachineOfAllRoots(const StallVerdict& verdict,
                                              absl::Span<const int> machine_of) {
  if (verdict.root.cause != StallCause::kUnknown || verdict.other_roots.empty()) {
    return std::nullopt;
  }
  std::set<int> ranks;
  std::set<int> machines;
  bool waits_for_data = true;
  for (const StallRoot& root : verdict.other_roots) {
    if (root.rank < 0 || static_cast<size_t>(root.rank) >= machine_of.size()) return std::nullopt;
    ranks.insert(root.rank);
    machines.insert(machine_of[static_cast<size_t>(root.rank)]);
    waits_for_data =
        waits_for_data && root.cause == StallCause::kRuns &&
        plan::OperationOf(root.instruction.operation()).op_class == plan::OpClass::kLoad;
  }
  if (machines.size() != 1 || *machines.begin() < 0) return std::nullopt;
  return StuckMachine{{ranks.begin(), ranks.end()}, waits_for_data};
}

}  // namespace megascale::diagnose
