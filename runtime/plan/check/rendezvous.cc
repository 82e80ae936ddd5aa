#include "runtime/plan/check/rendezvous.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::plan {
namespace {

constexpr int kNoMeeting = -1;

bool IsSend(OpKind kind) { return OperationOf(kind).op_class == OpClass::kSend; }

// An instruction of one of the given plans.
struct Place {
  size_t plan = 0;
  size_t index = 0;
};

// The instructions of all given ranks as one numbered list of nodes, and the meetings among them.
class Step {
 public:
  explicit Step(absl::Span<const RankPlan> plans) : plans_(plans) {
    for (size_t plan = 0; plan < plans.size(); ++plan) {
      given_.insert(plans[plan].rank);
      first_.push_back(static_cast<int>(places_.size()));
      for (size_t i = 0; i < plans[plan].instructions.size(); ++i) {
        places_.push_back({.plan = plan, .index = i});
      }
    }
    meeting_.resize(places_.size(), kNoMeeting);
  }

  absl::Status Match();
  absl::Status Run();

 private:
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

  const RankPlan& PlanOf(int node) const { return plans_[places_[node].plan]; }
  const Instruction& At(int node) const { return PlanOf(node).instructions[places_[node].index]; }
  std::string Text(int node) const {
    return absl::StrCat("rank ", PlanOf(node).rank, "'s ", At(node).id.ToString());
  }
  void Meet(const std::vector<int>& nodes) {
    for (const int node : nodes) meeting_[node] = static_cast<int>(meetings_.size());
    meetings_.push_back(nodes);
  }
  absl::Status MatchTraffic(const Traffic& traffic);
  absl::Status MatchGathering(const Gathering& gathering);
  absl::Status CheckPair(int one, int other) const;
  std::string WaitChain(const std::vector<int>& num_missing, const std::vector<bool>& ended) const;
  int Blocker(int node, const std::vector<int>& num_missing, const std::vector<bool>& ended) const;

  absl::Span<const RankPlan> plans_;
  absl::flat_hash_set<int> given_;          // ranks
  std::vector<Place> places_;               // by node
  std::vector<int> first_;                  // by plan: the node of its first instruction
  std::vector<int> meeting_;                // by node
  std::vector<std::vector<int>> meetings_;  // nodes that end together
  std::vector<int> previous_;               // by node: the one before it on its stream, or -1
};

absl::Status Step::Match() {
  std::map<Link, Traffic> links;
  std::map<Room, Gathering> rooms;
  for (int node = 0; node < static_cast<int>(places_.size()); ++node) {
    const Instruction& instruction = At(node);
    if (instruction.group == GroupKind::kNone) continue;
    const RankPlan& plan = PlanOf(node);
    const std::string group = plan.mesh.GroupName(instruction.group, plan.rank);
    const OpKind kind = instruction.kind();
    if (IsTransfer(kind)) {
      const int peer = plan.mesh.RankInGroup(instruction.group, plan.rank, instruction.peer);
      const auto [from, to] =
          IsSend(kind) ? std::pair(plan.rank, peer) : std::pair(peer, plan.rank);
      Traffic& traffic = links[{group, instruction.channel, from, to}];
      (IsSend(kind) ? traffic.sends : traffic.receives).push_back(node);
      continue;
    }
    Gathering& gathering = rooms[{group, instruction.channel}];
    if (gathering.ranks.empty()) {
      for (const int rank : plan.mesh.GroupOf(instruction.group, plan.rank).ranks) {
        if (given_.contains(rank)) gathering.ranks.push_back(rank);
      }
    }
    gathering.calls[plan.rank].push_back(node);
  }
  for (const auto& [link, traffic] : links) RETURN_IF_ERROR(MatchTraffic(traffic));
  for (const auto& [room, gathering] : rooms) RETURN_IF_ERROR(MatchGathering(gathering));
  return absl::OkStatus();
}

absl::Status Step::CheckPair(int one, int other) const {
  if (At(one).id.MessageId() != At(other).id.MessageId()) {
    return absl::InvalidArgumentError(absl::StrCat(Text(one), " meets ", Text(other),
                                                   " on channel ", At(one).channel,
                                                   "; all ranks must have one order there"));
  }
  if (At(one).bytes != At(other).bytes) {
    return absl::InvalidArgumentError(absl::StrCat(Text(one), " has ", At(one).bytes, " bytes, ",
                                                   Text(other), " has ", At(other).bytes));
  }
  return absl::OkStatus();
}

absl::Status Step::MatchTraffic(const Traffic& traffic) {
  const size_t num_pairs = std::min(traffic.sends.size(), traffic.receives.size());
  for (size_t i = 0; i < num_pairs; ++i) {
    RETURN_IF_ERROR(CheckPair(traffic.sends[i], traffic.receives[i]));
    Meet({traffic.sends[i], traffic.receives[i]});
  }
  const bool more_sends = traffic.sends.size() > num_pairs;
  if (more_sends || traffic.receives.size() > num_pairs) {
    const int alone = more_sends ? traffic.sends[num_pairs] : traffic.receives[num_pairs];
    return absl::InvalidArgumentError(
        absl::StrCat(Text(alone), " has no ", more_sends ? "receive" : "send", " at peer ",
                     At(alone).peer, " of its group, channel ", At(alone).channel));
  }
  return absl::OkStatus();
}

absl::Status Step::MatchGathering(const Gathering& gathering) {
  const std::vector<int>* longest = nullptr;
  for (const auto& [rank, calls] : gathering.calls) {
    if (longest == nullptr || calls.size() > longest->size()) longest = &calls;
  }
  for (size_t i = 0; i < longest->size(); ++i) {
    const int node = (*longest)[i];
    std::vector<int> members;
    for (const int rank : gathering.ranks) {
      const auto calls = gathering.calls.find(rank);
      if (calls == gathering.calls.end() || calls->second.size() <= i) {
        return absl::InvalidArgumentError(absl::StrCat(Text(node), " waits for rank ", rank,
                                                       ", which never joins it on channel ",
                                                       At(node).channel));
      }
      RETURN_IF_ERROR(CheckPair(node, calls->second[i]));
      members.push_back(calls->second[i]);
    }
    Meet(members);
  }
  return absl::OkStatus();
}

absl::Status Step::Run() {
  const int num_nodes = static_cast<int>(places_.size());
  std::vector<std::vector<int>> followers(num_nodes);
  std::vector<int> num_missing(num_nodes, 0);
  previous_.assign(num_nodes, -1);
  for (size_t plan = 0; plan < plans_.size(); ++plan) {
    std::array<int, kNumStreamKinds> last;
    last.fill(-1);
    for (size_t i = 0; i < plans_[plan].instructions.size(); ++i) {
      const int node = first_[plan] + static_cast<int>(i);
      const Instruction& instruction = plans_[plan].instructions[i];
      previous_[node] = std::exchange(last[static_cast<size_t>(instruction.stream)], node);
      if (previous_[node] >= 0) followers[previous_[node]].push_back(node);
      for (const int producer : instruction.depends_on) {
        followers[first_[plan] + producer].push_back(node);
      }
      num_missing[node] =
          static_cast<int>(instruction.depends_on.size()) + (previous_[node] >= 0 ? 1 : 0);
    }
  }
  std::vector<bool> ended(num_nodes, false);
  std::vector<size_t> num_begun(meetings_.size(), 0);
  std::vector<int> begun;
  for (int node = 0; node < num_nodes; ++node) {
    if (num_missing[node] == 0) begun.push_back(node);
  }
  int num_ended = 0;
  const auto end = [&](int node) {
    ended[node] = true;
    ++num_ended;
    for (const int follower : followers[node]) {
      if (--num_missing[follower] == 0) begun.push_back(follower);
    }
  };
  // The order of this loop does not matter: it never changes what can begin, so every run ends
  // alike.
  while (!begun.empty()) {
    const int node = begun.back();
    begun.pop_back();
    const int meeting = meeting_[node];
    if (meeting == kNoMeeting) {
      end(node);
    } else if (++num_begun[meeting] == meetings_[meeting].size()) {
      for (const int member : meetings_[meeting]) end(member);
    }
  }
  if (num_ended == num_nodes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a deadlock: ", WaitChain(num_missing, ended)));
}

int Step::Blocker(int node, const std::vector<int>& num_missing,
                  const std::vector<bool>& ended) const {
  if (num_missing[node] == 0) {
    // It has begun, so it waits for a member of its meeting that has not.
    const std::vector<int>& members = meetings_[meeting_[node]];
    return *std::find_if(members.begin(), members.end(),
                         [&](int member) { return num_missing[member] > 0; });
  }
  for (const int producer : At(node).depends_on) {
    const int candidate = first_[places_[node].plan] + producer;
    if (!ended[candidate]) return candidate;
  }
  return previous_[node];
}

std::string Step::WaitChain(const std::vector<int>& num_missing,
                            const std::vector<bool>& ended) const {
  int node = static_cast<int>(std::find(ended.begin(), ended.end(), false) - ended.begin());
  std::vector<int> path;
  while (std::find(path.begin(), path.end(), node) == path.end()) {
    path.push_back(node);
    node = Blocker(node, num_missing, ended);
  }
  path.erase(path.begin(), std::find(path.begin(), path.end(), node));
  path.push_back(node);
  std::string text;
  for (const int at : path) {
    absl::StrAppend(&text, text.empty() ? "" : " waits for ", Text(at));
  }
  return text;
}

}  // namespace

absl::Status CheckRendezvous(absl::Span<const RankPlan> plans) {
  Step step(plans);
  RETURN_IF_ERROR(step.Match());
  return step.Run();
}

}  // namespace megascale::plan
