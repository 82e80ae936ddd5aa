#include "controlplane/nodes/fleet.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace megascale::nodes {
namespace {

constexpr absl::Duration kBackoffMin = absl::Seconds(5);
constexpr absl::Duration kBackoffMax = absl::Minutes(5);
constexpr int kAsksPerTurn = 16;
// A request that the source has not shown for this time has ended; sources may lag.
constexpr absl::Duration kUnseenMax = absl::Seconds(30);
constexpr absl::Duration kSoundLife = absl::Minutes(1);
constexpr absl::Duration kJoinMax = absl::Minutes(1);
constexpr size_t kReasonBytesMax = 180;  // the driver takes 200
// Begins the reason of evictions that are the source's, so that their end is known.
constexpr char kReasonPrefix[] = "its manager: ";

bool IsIdle(const control::v1::NodeView* node) {
  return node == nullptr || (node->num_slots_used() == 0 && node->num_jobs() == 0);
}

std::string ReasonOf(const Machine& machine) {
  return absl::StrCat(kReasonPrefix, machine.why.substr(0, kReasonBytesMax));
}

}  // namespace

// The machines, joined with the driver's view of them.
struct Fleet::Counted {
  struct Entry {
    const Machine* machine = nullptr;
    const control::v1::NodeView* node = nullptr;  // null: it has not joined
  };
  std::vector<Entry> usable;
  std::vector<Entry> unusable;
  std::set<std::string> excluded;
  int num_held = 0;  // that the source has not taken back
};

int Fleet::Target(const ClusterView& cluster) const {
  const int64_t slots = std::max(1, options_.slots_per_machine);
  const int64_t needed = (cluster.needed_slots + slots - 1) / slots;
  const int64_t max = std::max(options_.nodes, options_.max);
  return static_cast<int>(std::clamp<int64_t>(needed, options_.nodes, max)) + options_.spares;
}

bool Fleet::IsUsable(absl::Duration now, const Machine& machine,
                     const control::v1::NodeView* node) {
  if (machine.state == MachineState::kLeaving || machine.state == MachineState::kGone) return false;
  if (node == nullptr) return true;
  if (node->pool() == control::v1::POOL_QUARANTINED) return false;
  if (node->alive()) {
    heard_.insert(machine.node_id);
    silent_since_.erase(machine.node_id);
    return true;
  }
  if (heard_.count(machine.node_id) != 0) return false;
  return now - silent_since_.try_emplace(machine.node_id, now).first->second < kJoinMax;
}

FleetActions Fleet::Decide(absl::Duration now, const std::vector<Machine>& machines,
                           const ClusterView& cluster) {
  std::map<std::string, const control::v1::NodeView*> nodes;
  for (const auto& node : cluster.nodes) nodes[node.node_id()] = &node;
  Counted counted;
  std::set<std::string> present;
  FleetActions actions;
  NoteRequests(now, machines);
  for (const Machine& machine : machines) {
    const auto found = machine.node_id.empty() ? nodes.end() : nodes.find(machine.node_id);
    const auto* node = found == nodes.end() ? nullptr : found->second;
    if (machine.state != MachineState::kGone) ++counted.num_held;
    if (!machine.node_id.empty()) {
      present.insert(machine.node_id);
      counted.excluded.insert(machine.node_id);
    }
    if (IsUsable(now, machine, node)) {
      counted.usable.push_back({&machine, node});
      if (node != nullptr && node->evicted() && machine.state == MachineState::kPresent &&
          absl::StartsWith(node->evicted_why(), kReasonPrefix)) {
        actions.uncordon.push_back(machine.node_id);
      }
      continue;
    }
    counted.unusable.push_back({&machine, node});
    if (machine.state == MachineState::kLeaving && node != nullptr && node->alive() &&
        !node->evicted()) {
      actions.evict.push_back({machine.node_id, ReasonOf(machine)});
    }
    if (machine.returnable && machine.state != MachineState::kGone && IsIdle(node)) {
      actions.give_back.push_back(machine);
    }
  }
  // A machine in quarantine that has left the launch must not come back as a replacement.
  for (const auto& node : cluster.nodes) {
    if (node.pool() == control::v1::POOL_QUARANTINED) {
      counted.excluded.insert(node.node_id());
    }
  }
  for (auto* times : {&idle_since_, &silent_since_}) {
    for (auto it = times->begin(); it != times->end();) {
      it = present.count(it->first) == 0 ? times->erase(it) : std::next(it);
    }
  }
  for (auto it = heard_.begin(); it != heard_.end();) {
    it = present.count(*it) == 0 ? heard_.erase(it) : std::next(it);
  }
  const int target = Target(cluster);
  const int usable = static_cast<int>(counted.usable.size()) + num_unseen_;
  if (usable < target) AskFor(target - usable, now, counted, &actions);
  ReturnSurplus(std::max(0, usable - target), now, counted, &actions);
  MakeSpares(counted, &actions);
  for (const Machine& machine : actions.give_back) returned_.insert(machine.request);
  return actions;
}

void Fleet::AskFor(int missing, absl::Duration now, const Counted& counted, FleetActions* actions) {
  if (now < ask_at_) return;
  // What is unusable and will be given back makes room only once the source has it.
  int fixed = 0;
  for (const auto& entry : counted.unusable) {
    fixed += entry.machine->state != MachineState::kGone && !entry.machine->returnable ? 1 : 0;
  }
  const int num_open = open_request_.empty() ? 0 : 1;  // the source may have it
  const int held = counted.num_held - fixed + num_unseen_ + num_open;
  const int room = std::max(options_.nodes, options_.max) + options_.spares - held;
  const auto ask = [&](const std::string& id) { actions->ask.push_back({id, counted.excluded}); };
  if (num_open == 1) ask(open_request_);
  for (int i = 0; i < std::min({missing - num_open, room, kAsksPerTurn}); ++i) {
    ask(absl::StrCat(options_.request_prefix, "-", ++last_request_));
  }
}

void Fleet::ReturnSurplus(int surplus, absl::Duration now, const Counted& counted,
                          FleetActions* actions) {
  // First what is only asked for, then what has been idle for the longest time.
  std::vector<std::pair<absl::Duration, const Machine*>> candidates;
  for (const auto& [machine, node] : counted.usable) {
    if (!IsIdle(node)) {
      idle_since_.erase(machine->node_id);
      continue;
    }
    absl::Duration since = absl::ZeroDuration();
    if (!machine->node_id.empty()) {
      since = idle_since_.try_emplace(machine->node_id, now).first->second;
      if (now - since < options_.idle_max) continue;
    }
    if (machine->returnable) candidates.emplace_back(since, machine);
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [since, machine] : candidates) {
    if (surplus-- <= 0) return;
    actions->give_back.push_back(*machine);
  }
}

// Machines that join become spares once there are enough active ones, so that jobs which start do
// not take them.
void Fleet::MakeSpares(const Counted& counted, FleetActions* actions) const {
  int active = 0;
  int spares = 0;
  std::vector<std::string> idle;
  for (const auto& [machine, node] : counted.usable) {
    if (node == nullptr || !node->alive() || node->evicted()) continue;
    if (node->pool() == control::v1::POOL_SPARE) {
      // A spare with ranks has taken the place of an active machine.
      ++(IsIdle(node) ? spares : active);
      continue;
    }
    ++active;
    if (IsIdle(node)) idle.push_back(machine->node_id);
  }
  std::sort(idle.begin(), idle.end());
  while (spares < options_.spares && active > options_.nodes && !idle.empty()) {
    actions->make_spare.push_back(idle.back());
    idle.pop_back();
    ++spares;
    --active;
  }
}

// A request that has ended soon, and not because it was given back, counts as a refusal.
void Fleet::NoteRequests(absl::Duration now, const std::vector<Machine>& machines) {
  std::set<std::string> shown;
  for (const Machine& machine : machines) {
    if (machine.state != MachineState::kGone) shown.insert(machine.request);
  }
  if (shown.count(open_request_) != 0) open_request_.clear();
  for (const std::string& id : shown) {
    if (!id.empty()) taken_.try_emplace(id, Taken{now, now});
  }
  bool has_failed = false;
  num_unseen_ = 0;
  for (auto it = taken_.begin(); it != taken_.end();) {
    auto& [id, times] = *it;
    if (shown.count(id) != 0) {
      times.seen = now;
    } else if (returned_.count(id) == 0 && now - times.seen < kUnseenMax) {
      ++num_unseen_;
    } else {
      has_failed =
          has_failed || (times.seen - times.taken < kSoundLife && returned_.count(id) == 0);
      returned_.erase(id);
      it = taken_.erase(it);
      continue;
    }
    ++it;
  }
  if (has_failed) OnRefused(now);
}

void Fleet::OnAsked(const std::string& request_id, absl::Duration now) {
  taken_[request_id] = {now, now};
  if (open_request_ == request_id) open_request_.clear();
  if (now >= ask_at_ + kSoundLife) backoff_ = absl::ZeroDuration();
}

void Fleet::OnRefused(absl::Duration now) {
  backoff_ = std::clamp(backoff_ * 2, kBackoffMin, kBackoffMax);
  ask_at_ = now + backoff_;
}

}  // namespace megascale::nodes
