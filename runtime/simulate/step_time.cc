#include "runtime/simulate/step_time.h"
#include "runtime/timeline/timed_step.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace megascale::simulate {
namespace {

using plan::Instruction;
using plan::RankPlan;
using timeline::MeetingName;
using timeline::MeetingOf;
using timeline::SpanTime;
using timeline::StepTime;

struct Place {      // an instruction
  size_t rank = 0;  // index of its plan
  size_t index = 0;
};

class Timer {
 public:
  Timer(absl::Span<const RankPlan> plans, const DurationOf& duration)
      : plans_(plans), duration_(duration) {
    for (const RankPlan& plan : plans) given_.insert(plan.rank);
    time_.ranks.resize(plans.size());
    nodes_.resize(plans.size());
    for (size_t rank = 0; rank < plans.size(); ++rank) Link(rank);
  }

  absl::StatusOr<StepTime> Run() && {
    while (!ready_.empty()) {
      const Place place = ready_.front();
      ready_.pop_front();
      const Instruction& instruction = At(place);
      if (instruction.group == plan::GroupKind::kNone) {
        const int64_t begin = TimeAt(place).ready;
        End({place}, begin, begin + duration_(plans_[place.rank], instruction));
      } else {
        Meet(place);
      }
    }
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      for (size_t i = 0; i < nodes_[rank].size(); ++i) {
        if (nodes_[rank][i].ended) continue;
        return absl::InvalidArgumentError(absl::StrCat("rank ", plans_[rank].rank, ": ",
                                                       plans_[rank].instructions[i].id.ToString(),
                                                       " never ends"));
      }
    }
    return std::move(time_);
  }

 private:
  struct Node {
    std::vector<size_t> followers;  // on the same rank
    int num_awaited = 0;
    bool ended = false;
  };
  // The members that have come to a transfer or collective.
  struct Meeting {
    std::vector<Place> members;
    int64_t begin = 0;
    int64_t duration = 0;
  };

  const Instruction& At(Place place) const { return plans_[place.rank].instructions[place.index]; }
  SpanTime& TimeAt(Place place) { return time_.ranks[place.rank][place.index]; }

  void Link(size_t rank) {
    const std::vector<Instruction>& instructions = plans_[rank].instructions;
    std::vector<Node>& nodes = nodes_[rank];
    nodes.resize(instructions.size());
    time_.ranks[rank].resize(instructions.size());
    std::array<int, plan::kNumStreamKinds> previous;
    previous.fill(-1);
    for (size_t i = 0; i < instructions.size(); ++i) {
      const auto follow = [&](int earlier) {
        nodes[static_cast<size_t>(earlier)].followers.push_back(i);
        ++nodes[i].num_awaited;
      };
      for (const int producer : instructions[i].depends_on) follow(producer);
      int& last = previous[static_cast<size_t>(instructions[i].stream)];
      if (last >= 0) follow(last);
      last = static_cast<int>(i);
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].num_awaited == 0) ready_.push_back({rank, i});
    }
  }

  // Returns how many of the given ranks meet in an instruction.
  int NumMembers(Place place) {
    const Instruction& instruction = At(place);
    if (IsTransfer(instruction.kind())) return 2;
    const RankPlan& plan = plans_[place.rank];
    // Counted once for all members: a group of 12,288 ranks has as many.
    const int first = plan.mesh.RankInGroup(instruction.group, plan.rank, 0);
    const auto [size, is_new] = sizes_.try_emplace({first, instruction.group}, 0);
    if (is_new) {
      for (const int rank : plan.mesh.GroupOf(instruction.group, plan.rank).ranks) {
        size->second += given_.contains(rank) ? 1 : 0;
      }
    }
    return size->second;
  }

  void Meet(Place place) {
    const Instruction& instruction = At(place);
    const RankPlan& plan = plans_[place.rank];
    const int size = NumMembers(place);
    const MeetingName name = MeetingOf(plan, instruction);
    Meeting& meeting = meetings_[name];
    meeting.members.push_back(place);
    meeting.begin = std::max(meeting.begin, TimeAt(place).ready);
    meeting.duration = std::max(meeting.duration, duration_(plan, instruction));
    if (static_cast<int>(meeting.members.size()) < size) return;
    End(meeting.members, meeting.begin, meeting.begin + meeting.duration);
    meetings_.erase(name);
  }

  void End(const std::vector<Place>& places, int64_t begin, int64_t end) {
    time_.end = std::max(time_.end, end);
    for (const Place place : places) {
      TimeAt(place).begin = begin;
      TimeAt(place).end = end;
      Node& node = nodes_[place.rank][place.index];
      node.ended = true;
      for (const size_t follower : node.followers) {
        SpanTime& next = time_.ranks[place.rank][follower];
        next.ready = std::max(next.ready, end);
        if (--nodes_[place.rank][follower].num_awaited == 0) {
          ready_.push_back({place.rank, follower});
        }
      }
    }
  }

  const absl::Span<const RankPlan> plans_;
  const DurationOf& duration_;
  absl::flat_hash_set<int> given_;                        // ranks
  std::map<std::pair<int, plan::GroupKind>, int> sizes_;  // given ranks, by a group's first rank
  StepTime time_;
  std::vector<std::vector<Node>> nodes_;
  std::deque<Place> ready_;
  std::map<MeetingName, Meeting> meetings_;
};

}  // namespace

absl::StatusOr<StepTime> TimeStep(absl::Span<const RankPlan> plans, const DurationOf& duration) {
  const bool are_templates =
      !plans.empty() && plan::RoleMap::ByStage(plans[0].mesh).AreTemplates(plans);
  for (size_t i = 0; i < plans.size() && !are_templates; ++i) {
    if (plans[i].rank == static_cast<int>(i) &&
        plans[i].mesh.world_size() == static_cast<int>(plans.size())) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("plan ", i, " of ", plans.size(), " is of rank ",
                                                   plans[i].rank, " of ",
                                                   plans[i].mesh.world_size()));
  }
  return Timer(plans, duration).Run();
}

absl::StatusOr<StepTime> TimeStep(absl::Span<const RankPlan> templates, const plan::RoleMap& roles,
                                  const DurationOf& duration) {
  if (!roles.AreTemplates(templates)) {
    return absl::InvalidArgumentError(absl::StrCat(templates.size(),
                                                   " plans; expected those of the first ranks of ",
                                                   roles.num_roles(), " roles, in order"));
  }
  return Timer(templates, duration).Run();
}

}  // namespace megascale::simulate
