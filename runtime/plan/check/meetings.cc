#include "runtime/plan/check/meetings.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::plan {
namespace {

bool IsSend(OpKind kind) { return OperationOf(kind).op_class == OpClass::kSend; }

}  // namespace

Meetings::Meetings(absl::Span<const RankPlan> plans) : plans_(plans) {
  for (size_t plan = 0; plan < plans.size(); ++plan) {
    given_.insert(plans[plan].rank);
    first_.push_back(static_cast<int>(places_.size()));
    std::array<int, kNumStreamKinds> last;
    last.fill(kNone);
    for (size_t i = 0; i < plans[plan].instructions.size(); ++i) {
      const auto stream = static_cast<size_t>(plans[plan].instructions[i].stream);
      previous_.push_back(std::exchange(last[stream], static_cast<int>(places_.size())));
      places_.push_back({.plan = plan, .index = i});
    }
  }
  meeting_.resize(places_.size(), kNone);
}

absl::StatusOr<Meetings> Meetings::Create(absl::Span<const RankPlan> plans) {
  Meetings meetings(plans);
  RETURN_IF_ERROR(meetings.Match());
  return meetings;
}

std::string Meetings::Text(int node) const {
  return absl::StrCat("rank ", PlanOf(node).rank, "'s ", At(node).id.ToString());
}

std::vector<int> Meetings::EndOrder() const {
  std::vector<std::vector<int>> followers(places_.size());
  std::vector<int> num_missing(places_.size(), 0);  // producers that have not ended
  std::vector<size_t> num_begun(members_.size(), 0);
  std::vector<int> begun;
  for (int node = 0; node < num_nodes(); ++node) {
    ForEachProducer(node, [&](int producer) {
      followers[producer].push_back(node);
      ++num_missing[node];
    });
    if (num_missing[node] == 0) begun.push_back(node);
  }
  std::vector<int> order;
  const auto end = [&](int node) {
    order.push_back(node);
    for (const int follower : followers[node]) {
      if (--num_missing[follower] == 0) begun.push_back(follower);
    }
  };
  while (!begun.empty()) {
    const int node = begun.back();
    begun.pop_back();
    const int meeting = meeting_[node];
    if (meeting == kNone) {
      end(node);
    } else if (++num_begun[meeting] == members_[meeting].size()) {
      for (const int member : members_[meeting]) end(member);
    }
  }
  return order;
}

void Meetings::Meet(const std::vector<int>& nodes) {
  for (const int node : nodes) meeting_[node] = static_cast<int>(members_.size());
  members_.push_back(nodes);
}

absl::Status Meetings::Match() {
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

absl::Status Meetings::CheckPair(int one, int other) const {
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

absl::Status Meetings::MatchTraffic(const Traffic& traffic) {
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

absl::Status Meetings::MatchGathering(const Gathering& gathering) {
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

}  // namespace megascale::plan
