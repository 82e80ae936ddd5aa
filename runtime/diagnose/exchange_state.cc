#include "runtime/diagnose/exchange_state.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace megascale::diagnose {
namespace {

class ExchangeExplanation {
 public:
  explicit ExchangeExplanation(absl::Span<const ShownCall> members) {
    for (const ShownCall& member : members) members_.emplace(member.rank, &member);
  }

  ExchangeVerdict Run() {
    for (const auto& [from, sender] : members_) {
      for (const auto& [to, receiver] : members_) {
        if (from != to) Look(*sender, *receiver);
      }
    }
    if (verdict_.stuck.empty()) return verdict_;
    Choose();
    Sort();
    return verdict_;
  }

 private:
  static const ShownFlow* FlowTo(const ShownCall& call, int peer) {
    for (const ShownFlow& flow : call.flows) {
      if (flow.peer == peer) return &flow;
    }
    return nullptr;
  }

  // Adds the flow from one to the other, unless it is done or neither shows it.
  void Look(const ShownCall& sender, const ShownCall& receiver) {
    const ShownFlow* out = sender.is_inside ? FlowTo(sender, receiver.rank) : nullptr;
    const ShownFlow* in = receiver.is_inside ? FlowTo(receiver, sender.rank) : nullptr;
    StuckFlow flow = {.from = sender.rank, .to = receiver.rank};
    if (out != nullptr) {
      flow.ready_bytes = out->send_bytes;
      flow.transmitted_bytes = out->transmitted_bytes;
      flow.arrived_bytes = in != nullptr ? in->received_bytes : out->delivered_bytes;
      flow.quiet_seconds = out->quiet_seconds;
    } else if (in != nullptr) {
      // The sender has left, or shows nothing: what it made ready has arrived.
      flow.ready_bytes = in->received_bytes;
      flow.transmitted_bytes = in->received_bytes;
      flow.arrived_bytes = in->received_bytes;
      flow.quiet_seconds = in->quiet_seconds;
    } else {
      return;
    }
    flow.state = StateOf({.expected = in != nullptr ? in->receive_bytes : flow.ready_bytes,
                          .ready = flow.ready_bytes,
                          .transmitted = flow.transmitted_bytes,
                          .arrived = flow.arrived_bytes});
    if (flow.state != FlowState::kDone) verdict_.stuck.push_back(flow);
  }

  // Whether the rank's own report shows a stuck flow of it as its part.
  bool Agrees(int rank, const StuckFlow& flow) const {
    const ShownCall& call = *members_.at(rank);
    if (!call.is_known || !call.is_inside) return false;
    if (flow.state == FlowState::kNotReady) return false;  // ChooseDevice decides
    const ShownFlow* own = FlowTo(call, rank == flow.from ? flow.to : flow.from);
    if (own == nullptr) return false;
    return rank == flow.from ? own->delivered_bytes < own->send_bytes
                             : own->received_bytes < own->receive_bytes;
  }

  // By its own report the rank has got all bytes that it expects, and all that it made ready have
  // been taken: the call goes on as soon as its device does.
  static bool WaitsForNothing(const ShownCall& call) {
    return !call.flows.empty() &&
           std::all_of(call.flows.begin(), call.flows.end(), [](const ShownFlow& flow) {
             return flow.received_bytes >= flow.receive_bytes &&
                    flow.delivered_bytes >= flow.send_bytes;
           });
  }

  void Choose() {
    const auto is_ready = [](const StuckFlow& flow) { return flow.state != FlowState::kNotReady; };
    const auto first = std::find_if(verdict_.stuck.begin(), verdict_.stuck.end(), is_ready);
    if (first == verdict_.stuck.end()) return ChooseDevice();
    verdict_.state = first->state;
    std::set<int> ends;
    for (const StuckFlow& flow : verdict_.stuck) ends.insert({flow.from, flow.to});
    if (ends.size() > 2) return ChooseRank();
    verdict_.from = first->from;
    verdict_.to = first->to;
    if (verdict_.stuck.size() == 1 && ReceiverTakesNothing(*first)) verdict_.likely = first->to;
  }

  // No byte stands still on its way. The one rank that waits for nothing, by its own report, and
  // yet does not go on is the cause. If several do not go on, what it should send is the word of
  // its receiver alone.
  void ChooseDevice() {
    verdict_.state = FlowState::kNotReady;
    std::vector<int> idle;
    for (const auto& [rank, call] : members_) {
      if (call->is_known && call->is_inside && WaitsForNothing(*call)) idle.push_back(rank);
    }
    const bool is_sender = std::any_of(
        verdict_.stuck.begin(), verdict_.stuck.end(),
        [&](const StuckFlow& flow) { return idle.size() == 1 && flow.from == idle.front(); });
    if (is_sender) verdict_.rank = idle.front();
  }

  // A rank is the cause if all stuck flows are its own, it has several, and its own report agrees.
  void ChooseRank() {
    std::map<int, int> flows_of;  // by rank
    for (const StuckFlow& flow : verdict_.stuck) {
      ++flows_of[flow.from];
      ++flows_of[flow.to];
    }
    const int num_flows = static_cast<int>(verdict_.stuck.size());
    for (const auto& entry : flows_of) {
      const int rank = entry.first;
      if (entry.second != num_flows) continue;
      const bool agrees = std::any_of(verdict_.stuck.begin(), verdict_.stuck.end(),
                                      [&](const StuckFlow& flow) { return Agrees(rank, flow); });
      if (agrees) verdict_.rank = rank;
    }
  }

  // Bytes leave the sender and do not arrive, while all that the receiver sent has arrived.
  bool ReceiverTakesNothing(const StuckFlow& flow) const {
    if (flow.state != FlowState::kNotDelivered || flow.ready_bytes > flow.transmitted_bytes ||
        !Agrees(flow.to, flow)) {
      return false;
    }
    const ShownFlow& back = *FlowTo(*members_.at(flow.to), flow.from);
    return back.send_bytes > 0 && back.delivered_bytes >= back.send_bytes;
  }

  void Sort() {
    const auto is_of_cause = [&](const StuckFlow& flow) {
      return flow.from == verdict_.rank || flow.to == verdict_.rank;
    };
    std::stable_sort(verdict_.stuck.begin(), verdict_.stuck.end(),
                     [&](const StuckFlow& a, const StuckFlow& b) {
                       if (is_of_cause(a) != is_of_cause(b)) return is_of_cause(a);
                       return a.quiet_seconds > b.quiet_seconds;
                     });
  }

  std::map<int, const ShownCall*> members_;  // by rank
  ExchangeVerdict verdict_;
};

// Returns the elements that all pairs contain.
std::set<int> InAll(const std::vector<std::pair<int, int>>& pairs) {
  std::set<int> common = {pairs.front().first, pairs.front().second};
  for (const auto& [a, b] : pairs) {
    for (const int element : {pairs.front().first, pairs.front().second}) {
      if (element != a && element != b) common.erase(element);
    }
  }
  return common;
}

}  // namespace

ExchangeVerdict JoinExchanges(absl::Span<const ExchangeVerdict> verdicts,
                              absl::Span<const int> machine_of) {
  ExchangeVerdict joined;
  const auto is_stuck = [](const ExchangeVerdict& verdict) { return !verdict.stuck.empty(); };
  const auto num_stuck = std::count_if(verdicts.begin(), verdicts.end(), is_stuck);
  if (num_stuck == 0) return joined;
  const auto first = std::find_if(verdicts.begin(), verdicts.end(), is_stuck);
  if (num_stuck == 1 && (first->rank >= 0 || first->from >= 0)) return *first;
  const auto number_of = [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    return rank >= 0 && index < machine_of.size() ? machine_of[index] : -1;
  };
  std::vector<std::pair<int, int>> ranks;
  std::vector<std::pair<int, int>> machines;
  std::set<int> named;
  for (const ExchangeVerdict& verdict : verdicts) {
    if (verdict.stuck.empty()) continue;
    named.insert(verdict.rank);
    for (const StuckFlow& flow : verdict.stuck) {
      joined.stuck.push_back(flow);
      ranks.emplace_back(flow.from, flow.to);
      machines.emplace_back(number_of(flow.from), number_of(flow.to));
    }
  }
  joined.state = first->state;
  if (named.size() == 1 && *named.begin() >= 0) {  // each exchange names it
    joined.rank = *named.begin();
    return joined;
  }
  const bool is_network =
      std::any_of(joined.stuck.begin(), joined.stuck.end(),
                  [](const StuckFlow& flow) { return flow.state != FlowState::kNotReady; });
  if (!is_network) return joined;
  const std::set<int> common_ranks = InAll(ranks);
  const std::set<int> common_machines = InAll(machines);
  // Only a rank that its own report names is named (ExplainExchange).
  if (common_ranks.size() == 1 && named.count(*common_ranks.begin()) > 0) {
    joined.rank = *common_ranks.begin();
  } else if (common_ranks.size() == 2 ||
             (common_machines.size() == 2 && common_machines.count(-1) == 0)) {
    joined.from = joined.stuck.front().from;
    joined.to = joined.stuck.front().to;
  } else if (common_machines.count(-1) > 0 || common_machines.empty()) {
    return joined;
  } else if (std::any_of(machines.begin(), machines.end(),
                         [](const auto& pair) { return pair.first != pair.second; })) {
    joined.machine = *common_machines.begin();
  }
  return joined;
}

FlowState StateOf(const FlowBytes& bytes) {
  if (bytes.arrived >= std::max(bytes.expected, bytes.ready)) return FlowState::kDone;
  if (bytes.ready > bytes.transmitted) {
    return bytes.transmitted == 0 ? FlowState::kNotStarted : FlowState::kNotTransmitted;
  }
  if (bytes.transmitted > bytes.arrived) return FlowState::kNotDelivered;
  return bytes.ready == 0 ? FlowState::kNotStarted : FlowState::kNotReady;
}

const char* Name(FlowState state) {
  switch (state) {
    case FlowState::kDone:
      return "done";
    case FlowState::kNotStarted:
      return "not started";
    case FlowState::kNotTransmitted:
      return "not transmitted";
    case FlowState::kNotDelivered:
      return "not delivered";
    case FlowState::kNotReady:
      return "device not ready";
  }
  return "unknown";
}

ExchangeVerdict ExplainExchange(absl::Span<const ShownCall> members) {
  return ExchangeExplanation(members).Run();
}

}  // namespace megascale::diagnose
