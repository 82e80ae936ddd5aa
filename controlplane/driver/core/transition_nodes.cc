// The part of driver_core.h that concerns nodes: they come, go, take their processes with them, and
// exchange bytes with each other.
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/transition.h"
#include "controlplane/driver/exchanges/exchanges.h"
#include "controlplane/driver/exchanges/failed_links.h"
#include "controlplane/driver/exchanges/rounds.h"
#include "runtime/base/repeated.h"
#include "runtime/base/text/shortlist.h"

namespace megascale::driver {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;
using google::protobuf::util::MessageDifferencer;

namespace {

pb::Failure Unreachable(const std::string& node_id, const std::string& why) {
  pb::Failure found;
  found.mutable_culprit()->set_node_id(node_id);
  found.mutable_culprit()->set_rank(-1);
  found.mutable_culprit()->set_failure_class(telemetry::FAILURE_CLASS_UNREACHABLE);
  found.mutable_culprit()->set_evidence(why);
  return found;
}

// An agent whose version has no key is recognised by its machine.
bool IsSameAgent(const agent::Hello& holder, const agent::Hello& hello) {
  if (holder.key().empty()) return holder.machine_id() == hello.machine_id();
  return holder.key() == hello.key();
}

std::string HostOf(const agent::Hello& hello) {
  return hello.hostname().empty() ? "an unnamed host" : absl::StrCat("host ", hello.hostname());
}

// Describes, for the jobs that had processes there, what happened to a node's agent when another
// incarnation of it joined.
std::string WhatHappened(const agent::Hello& before, const agent::Hello& now) {
  const bool same = IsSameAgent(before, now);
  if (now.key().empty() || (same && before.machine_id() == now.machine_id())) {
    return "its agent was restarted, its processes died with it";
  }
  if (same && before.hostname() == now.hostname()) {
    return "its machine was restarted, its processes died with it";
  }
  return absl::StrCat(same ? "its agent was moved to another machine (now "
                           : "another machine joined under its node id (now ",
                      HostOf(now), ", before ", HostOf(before), "), its processes are lost");
}

// An operator evicts a node to let another machine have its id.
bool IsBoundToAnother(const NodeRecord& node, const agent::Hello& hello,
                      absl::string_view certificate) {
  if (node.evicted() || certificate.empty() || node.certificate().empty()) return false;
  const bool same_key = !hello.key().empty() && node.hello().key() == hello.key();
  return node.certificate() != certificate && !same_key;
}

}  // namespace

absl::Status CheckJoin(const DriverState& state, const agent::Hello& hello,
                       absl::string_view certificate, Contact contact) {
  const NodeRecord* node = FindNode(state, hello.node_id());
  if (node == nullptr) return absl::OkStatus();
  const std::string name = absl::StrCat("node ", hello.node_id(), ": ");
  if (IsBoundToAnother(*node, hello, certificate)) {
    return absl::PermissionDeniedError(absl::StrCat(
        name, "is bound to the certificate '", node->certificate(), "', and this agent shows '",
        certificate,
        "' and another key; give it another --node-id or, if its machine replaces "
        "the one before, `megascale evict ",
        hello.node_id(), "`, start this agent, `megascale uncordon ", hello.node_id(), "`"));
  }
  if (!node->alive()) return absl::OkStatus();
  const agent::Hello& holder = node->hello();
  const bool same_agent = IsSameAgent(holder, hello);
  if (same_agent && holder.incarnation() == hello.incarnation()) return absl::OkStatus();
  // An agent on another machine may be a copy, and the holder's stream may be broken for a moment.
  const bool same_machine = holder.machine_id() == hello.machine_id();
  if (same_agent && same_machine && contact != Contact::kHeard) return absl::OkStatus();
  const std::string other = absl::StrCat("the agent on ", HostOf(holder));
  if (contact == Contact::kHeard) {
    return absl::AlreadyExistsError(absl::StrCat(
        name, other, " has this node id and is healthy, and this agent has ",
        same_agent ? "the same key, so its state directory may be a copy: if it is, remove "
                     "agent.key from it, and give this agent another --node-id"
                   : "another key; give this agent another --node-id, or end that one"));
  }
  return absl::AlreadyExistsError(absl::StrCat(
      name, other, " has this node id and ",
      contact == Contact::kUnknown ? "may still report to the driver, which was just started"
                                   : "went away a moment ago",
      "; this agent", same_agent ? "" : ", which has another key,",
      " is accepted once that one has been silent for the driver's --node-timeout"));
}

bool Transition::OnNodeJoined(const pb::NodeJoined& joined) {
  const agent::Hello& hello = joined.hello();
  NodeRecord* node = NodeToChange(hello.node_id());
  const bool shared_one_machine = ShareOneMachine(state_);
  const bool is_new = node == nullptr || node->hello().incarnation() != hello.incarnation();
  if (node == nullptr) {
    node = AddNode(&state_, hello.node_id());
    node->set_unnamed(joined.unnamed());
    index_.TouchNode(hello.node_id());
  } else if (is_new) {
    LoseProcesses(hello.node_id(),
                  Unreachable(hello.node_id(), WhatHappened(node->hello(), hello)));
    node->clear_draining();
    if (joined.unnamed()) node->set_unnamed(true);
  } else if (node->alive() && MessageDifferencer::Equals(node->hello(), hello) &&
             (joined.certificate().empty() || joined.certificate() == node->certificate()) &&
             (joined.address().empty() || joined.address() == node->address())) {
    return false;
  }
  if (!joined.certificate().empty()) node->set_certificate(joined.certificate());
  if (!joined.address().empty()) node->set_address(joined.address());
  *node->mutable_hello() = hello;
  if (state_.rules() >= 6 && (!node->alive() || is_new)) {
    node->set_joined_unix_nanos(event_.time_unix_nanos());
  }
  node->set_alive(true);
  node->clear_lost_unix_nanos();
  if (is_new) {
    node->clear_test();
    ClearExchanges(node);
    node->clear_busy();
    node->clear_fenced_epoch();
    DemandTest(node, "its agent started", nullptr);
  } else if (state_.rules() >= 8 && !node->has_test() && node->hello().tests_machine() &&
             state_.machine_tests() != agent::TEST_KIND_UNSPECIFIED) {
    // A driver of an older version did not note that its agent can test it.
    DemandTestBesideJobs(node, BusyNodes(state_));
  }
  // Agents of one machine have exchanged with each other, which proves no network.
  if (shared_one_machine && !ShareOneMachine(state_)) ForgetLocalResults();
  return true;
}

bool Transition::OnNodeLost(const pb::NodeLost& lost) {
  NodeRecord* node = NodeToChange(lost.node_id());
  if (node == nullptr || !node->alive() || node->hello().incarnation() != lost.incarnation()) {
    return false;
  }
  node->set_alive(false);
  node->set_lost_unix_nanos(event_.time_unix_nanos());
  pb::Failure found = Unreachable(lost.node_id(), lost.why());
  if (lost.has_noticed_at()) *found.mutable_noticed_at() = lost.noticed_at();
  LoseProcesses(lost.node_id(), found);
  return true;
}

bool Transition::OnNodeEvicted(const pb::NodeEvicted& evicted) {
  NodeRecord* node = NodeToChange(evicted.node_id());
  if (node == nullptr) return false;
  if (node->evicted() && node->evicted_why() == evicted.why()) return false;
  node->set_evicted(true);
  node->set_evicted_why(evicted.why());
  Leave(evicted.node_id(), "NodeEvicted");
  return true;
}

bool Transition::OnNodeUncordoned(const pb::NodeUncordoned& uncordoned) {
  NodeRecord* node = NodeToChange(uncordoned.node_id());
  if (node == nullptr) return false;
  bool changed = node->evicted() || node->has_quarantine() || node->unnamed();
  if (node->has_quarantine()) DemandTest(node, "its quarantine was ended", nullptr);
  node->clear_evicted();
  node->clear_evicted_why();
  node->clear_quarantine();
  node->clear_unnamed();
  changed |= ForgetLinksOf(uncordoned.node_id(), &state_);
  for (JobRecord& job : *state_.mutable_jobs()) {
    auto* refusing = job.mutable_refusing();
    const auto kept = std::remove_if(refusing->begin(), refusing->end(), [&](const auto& entry) {
      return entry.node_id() == uncordoned.node_id();
    });
    if (kept == refusing->end()) continue;
    changed = true;
    Touch(job);
    refusing->erase(kept, refusing->end());
  }
  return changed;
}

bool Transition::OnNodeDraining(const pb::NodeDraining& draining) {
  NodeRecord* node = NodeToChange(draining.node_id());
  if (node == nullptr || !node->alive() || node->draining() ||
      node->hello().incarnation() != draining.incarnation()) {
    return false;
  }
  node->set_draining(true);
  Leave(draining.node_id(), "NodeDraining");
  return true;
}

void Transition::Leave(const std::string& node_id, const std::string& reason) {
  const JobIndex::Places there = index_.On(node_id);
  for (const int place : there) {
    JobRecord& job = *state_.mutable_jobs(place);
    if (!HoldsSlots(job)) continue;  // this event ended it
    Touch(job);
    for (auto& fenced : *job.mutable_fenced()) {
      if (fenced.node_id() != node_id) continue;
      fenced.clear_snapshots();  // the agent drops them
      index_.TouchLists(job);
    }
    // A job whose ranks have all ended is about to complete, or to fail.
    const bool trains = job.stage() == pb::STAGE_RUN && job.ended_size() < WorldSize(job);
    if (!trains && job.stage() != pb::STAGE_PREFLIGHT) continue;
    job.mutable_leave()->set_node_id(node_id);
    job.mutable_leave()->set_reason(reason);
    job.clear_fenced();
    Enter(&job, trains ? pb::STAGE_LEAVE : pb::STAGE_FENCE);
    SetStatus(&job, control::JOB_STATE_RECOVERING, reason,
              absl::StrCat("leaves node ", node_id,
                           trains ? ": its ranks make a checkpoint and stop" : ""));
  }
}

void Transition::LoseProcesses(const std::string& node_id, const pb::Failure& found) {
  const JobIndex::Places there = index_.On(node_id);
  for (const int place : there) {
    JobRecord& job = *state_.mutable_jobs(place);
    if (!HoldsSlots(job)) continue;  // this event ended it
    Touch(job);
    const bool was_fenced = IsFenced(job, node_id);
    base::EraseIf(job.mutable_fenced(),
                  [&](const auto& entry) { return entry.node_id() == node_id; });
    for (const auto& placement : job.placements()) {
      if (placement.node_id() != node_id || index_.HasEnded(job, placement.rank())) continue;
      auto* ended = job.add_ended();
      ended->set_rank(placement.rank());
      ended->set_failed(true);
    }
    // The attempt had ended before, and nothing of it was left there.
    if (state_.rules() >= 7 && was_fenced && job.stage() == pb::STAGE_FENCE) continue;
    Fail(&job, found);
  }
}

// --- exchanges between machines -----------------------------------------------------------------

void Transition::ClearExchanges(NodeRecord* node) {
  if (!node->has_exchanges()) return;  // so no other machine has a result with it
  const std::string& node_id = node->hello().node_id();
  node->clear_exchanges();
  const auto is_with = [&](const auto& result) { return result.node_id() == node_id; };
  for (NodeRecord& other : *state_.mutable_nodes()) {
    const auto& results = other.exchanges().results();
    if (std::none_of(results.begin(), results.end(), is_with)) continue;
    base::EraseIf(NodeToChange(other.hello().node_id())->mutable_exchanges()->mutable_results(),
                  is_with);
  }
}

void Transition::ForgetLocalResults() {
  for (int place = state_.exchanges_size() - 1; place >= 0; --place) {
    const auto& members = state_.exchanges(place).members();
    const NodeRecord* node = FindNode(state_, members[0].node_id());
    const NodeRecord* other = FindNode(state_, members[1].node_id());
    if (node != nullptr && other != nullptr && AreOnOneMachine(*node, *other)) DropExchange(place);
  }
  for (NodeRecord& node : *state_.mutable_nodes()) {
    if (!node.has_exchanges()) continue;
    base::EraseIf(NodeToChange(node.hello().node_id())->mutable_exchanges()->mutable_results(),
                  [&](const auto& result) {
                    const NodeRecord* other = FindNode(state_, result.node_id());
                    return other != nullptr && AreOnOneMachine(node, *other);
                  });
    node.mutable_exchanges()->clear_round();  // all its members shared the machine
  }
}

// Call when the machine's own test has passed. An agent whose version cannot exchange counts as
// tested.
void Transition::DemandExchanges(NodeRecord* node, const std::string& why, bool after_failure) {
  ClearExchanges(node);
  if (state_.rules() < 7 || state_.machine_tests() == agent::TEST_KIND_UNSPECIFIED ||
      !node->hello().tests_exchange()) {
    return;
  }
  node->mutable_exchanges()->set_why(why);
  node->mutable_exchanges()->set_after_failure(after_failure);
}

void Transition::ExchangeAfterFailure(const JobRecord& job) {
  const Culprit& culprit = job.culprit();
  const bool is_of_link = culprit.failure_class() == telemetry::FAILURE_CLASS_LINK;
  if (!is_of_link && culprit.failure_class() != telemetry::FAILURE_CLASS_ABORTED) return;
  for (const std::string& node_id : LiveNodesOf(state_, job)) {
    const bool is_end = node_id == culprit.node_id() || node_id == culprit.peer_node_id();
    if (is_of_link && !is_end) continue;
    NodeRecord* node = NodeToChange(node_id);
    if (IsTestDue(*node) || IsExchanging(*node)) continue;
    DemandExchanges(node, absl::StrCat("job ", JobId(job), ": ", Describe(job.culprit())), true);
  }
}

bool Transition::OnExchangeTested(const pb::ExchangeTested& tested) {
  auto* exchanges = state_.mutable_exchanges();
  const auto exchange =
      std::find_if(exchanges->begin(), exchanges->end(),
                   [&](const auto& running) { return running.id() == tested.test().id(); });
  if (exchange == exchanges->end()) return false;
  auto* members = exchange->mutable_members();
  const auto member = std::find_if(members->begin(), members->end(), [&](const auto& one) {
    return one.node_id() == tested.node_id() && one.incarnation() == tested.incarnation();
  });
  if (member == members->end() || member->has_test() ||
      tested.test().state() < agent::MachineTest::STATE_PASSED) {
    return false;
  }
  *member->mutable_test() = tested.test();
  if (!std::all_of(members->begin(), members->end(),
                   [](const auto& one) { return one.has_test(); })) {
    return true;
  }
  const pb::Exchange ended = *exchange;
  exchanges->erase(exchange);
  EndExchange(ended);
  return true;
}

void Transition::EndExchange(const pb::Exchange& exchange) {
  if (IsRound(exchange)) return EndRound(exchange);
  const std::vector<std::string> node_ids = {exchange.members(0).node_id(),
                                             exchange.members(1).node_id()};
  for (int i = 0; i < exchange.members_size(); ++i) {
    control::ExchangeResult result = ResultFor(exchange, i);
    Stamp(result.mutable_ended_at());
    auto* kept = NodeToChange(exchange.members(i).node_id())->mutable_exchanges();
    kept->clear_with();
    KeepResult(result, kept);
    if (Judge(result) == ExchangeVerdict::kPassed) ForgetLinksAmong(node_ids, &state_);
  }
  const double minimum = MinimumExchangeRate(state_);
  for (NodeRecord& node : *state_.mutable_nodes()) {
    if (KeepMinimum(minimum, &node)) NodeToChange(node.hello().node_id());
  }
  if (state_.rules() < 8) {  // since then EndHaste does it
    for (const pb::ExchangeMember& member : exchange.members()) {
      NodeRecord* node = NodeToChange(member.node_id());
      if (!WantsExchange(*node)) node->mutable_exchanges()->set_after_failure(false);
    }
  }
  for (const FaultyMachine& faulty : FindFaulty(state_)) {
    Quarantine(faulty.node_id, absl::StrCat("machine test: ", faulty.evidence));
  }
}

// A round names nobody: each of its links may be in order, and the switches between them too slow
// for all at once.
void Transition::EndRound(const pb::Exchange& round) {
  const double minimum = MinimumExchangeRate(state_);
  std::vector<std::string> passed;
  for (int i = 0; i < round.members_size(); ++i) {
    control::ExchangeResult result = RoundResultFor(round, i);
    Stamp(result.mutable_ended_at());
    result.set_rate_min(minimum);
    auto* exchanges = NodeToChange(round.members(i).node_id())->mutable_exchanges();
    exchanges->clear_with();
    if (Judge(result) == ExchangeVerdict::kPassed) passed.push_back(round.members(i).node_id());
    *exchanges->mutable_round() = std::move(result);
  }
  ForgetLinksAmong(passed, &state_);
}

namespace {

// Returns whether all members can still end the exchange.
bool CanEnd(const DriverState& state, const pb::Exchange& exchange) {
  const auto& members = exchange.members();
  return std::all_of(members.begin(), members.end(), [&](const auto& member) {
    const NodeRecord* node = FindNode(state, member.node_id());
    return node != nullptr && TakesRanks(*node) && IsExchanging(*node) &&
           node->hello().incarnation() == member.incarnation();
  });
}

}  // namespace

void Transition::DropExchange(int place) {
  for (const auto& member : state_.exchanges(place).members()) {
    NodeRecord* node = NodeToChange(member.node_id());
    if (node != nullptr && node->has_exchanges()) node->mutable_exchanges()->clear_with();
  }
  state_.mutable_exchanges()->DeleteSubrange(place, 1);
}

Transition::NodeUse Transition::UseOf(const std::string& node_id) const {
  NodeUse use = NodeUse::kFree;
  for (const int place : index_.On(node_id)) {
    const JobRecord& job = state_.jobs(place);
    if (!HoldsSlots(job)) continue;  // since this event
    if (!IsHold(job.stage()) || !index_.HasFenced(job, node_id)) return NodeUse::kBusy;
    use = NodeUse::kHolds;
  }
  return use;
}

bool Transition::MayExchange(const NodeRecord& node) const {
  const bool is_there = node.has_exchanges() && !IsExchanging(node);
  return is_there && TakesRanks(node) && !IsTestDue(node);
}

std::vector<FreeMachine> Transition::FreeMachines() const {
  std::vector<const NodeRecord*> nodes;
  bool is_wanted = false;
  for (const NodeRecord& node : state_.nodes()) {
    if (!MayExchange(node)) continue;
    nodes.push_back(&node);
    is_wanted = is_wanted || WantsExchange(node) || (state_.rules() >= 8 && WantsRound(node));
  }
  if (!is_wanted) return {};
  const bool is_restored = IsRestored();
  std::vector<FreeMachine> free;
  for (const NodeRecord* node : nodes) {
    // Processes may be there that this log does not know.
    if (is_restored && !HasFencedEpoch(state_, *node)) continue;
    const NodeUse use = UseOf(node->hello().node_id());
    if (use != NodeUse::kBusy) free.push_back({node, use == NodeUse::kHolds});
  }
  return free;
}

bool Transition::IsRestored() const {
  return std::any_of(index_.open().begin(), index_.open().end(),
                     [&](int place) { return IsFencedEverywhere(state_, state_.jobs(place)); });
}

void Transition::PairMachines() {
  for (int place = state_.exchanges_size() - 1; place >= 0; --place) {
    if (!CanEnd(state_, state_.exchanges(place))) DropExchange(place);
  }
  const std::vector<FreeMachine> free = FreeMachines();
  const int num_max = kExchangesAtOnce - state_.exchanges_size();
  if (free.empty() || num_max <= 0) return EndHaste();
  for (const auto& [low, high] : ChoosePairs(free, ShareOneMachine(state_), num_max)) {
    BeginExchange({low, high});
  }
  if (state_.rules() >= 8) BeginRounds(free);
  EndHaste();
}

// Machines of a failed attempt wait only for each other, and the others for all new ones, so that
// these exchange in one round.
void Transition::BeginRounds(const std::vector<FreeMachine>& free) {
  const auto is_unsettled = [](const NodeRecord& node) {
    return IsExchanging(node) || (node.alive() && IsTestDue(node) && !node.test().again());
  };
  for (const bool after_failure : {true, false}) {
    const bool waits =
        std::any_of(state_.nodes().begin(), state_.nodes().end(), [&](const NodeRecord& node) {
          return is_unsettled(node) && (!after_failure || node.exchanges().after_failure());
        });
    if (waits) continue;
    std::vector<const NodeRecord*> machines;
    for (const FreeMachine& machine : free) {
      const bool is_of_failure = machine.node->exchanges().after_failure();
      if (is_of_failure != after_failure || !WantsRound(*machine.node)) continue;
      if (!machine.holds_memory || after_failure) machines.push_back(machine.node);
    }
    BeginRoundsOf(machines);
  }
}

bool Transition::BeginRoundsOf(const std::vector<const NodeRecord*>& machines) {
  if (machines.size() < static_cast<size_t>(kRoundMin)) return false;
  const int num_max = kExchangesAtOnce - state_.exchanges_size();
  const auto rounds = ChooseRounds(machines, ShareOneMachine(state_), num_max);
  for (const std::vector<std::string>& node_ids : rounds) BeginExchange(node_ids);
  return !rounds.empty();
}

bool Transition::BeginRoundsBefore(const PlacementResult& placement) {
  if (state_.rules() < 8 || state_.exchanges_size() >= kExchangesAtOnce) return false;
  const std::set<std::string> node_ids = NodesOf(placement);
  if (node_ids.size() < static_cast<size_t>(kRoundMin)) return false;
  const bool is_restored = IsRestored();
  std::vector<const NodeRecord*> machines;
  for (const std::string& node_id : node_ids) {
    const NodeRecord* node = FindNode(state_, node_id);
    const bool is_free = UseOf(node_id) == NodeUse::kFree && begun_on_.count(node_id) == 0;
    if (!MayExchange(*node) || !is_free) continue;
    if (!is_restored || HasFencedEpoch(state_, *node)) machines.push_back(node);
  }
  return BeginRoundsOf(machines);
}

void Transition::BeginExchange(const std::vector<std::string>& node_ids) {
  // Greater than the number of any event, which is the id of a machine's own test.
  int64_t id = VersionOfEvent(state_.num_events());
  if (!state_.exchanges().empty()) id = std::max(id, state_.exchanges().rbegin()->id() + 1);
  pb::Exchange* exchange = state_.add_exchanges();
  exchange->set_id(id);
  exchange->set_kind(state_.machine_tests());
  for (const std::string& node_id : node_ids) {
    std::vector<std::string> others;
    for (const std::string& other : node_ids) {
      if (other != node_id) others.push_back(other);
    }
    NodeRecord* node = NodeToChange(node_id);
    node->mutable_exchanges()->set_with(base::Shortlist(others));
    pb::ExchangeMember* member = exchange->add_members();
    member->set_node_id(node_id);
    member->set_incarnation(node->hello().incarnation());
  }
}

void Transition::EndHaste() {
  if (state_.rules() < 8) return;
  const bool goes_on =
      std::any_of(state_.nodes().begin(), state_.nodes().end(), [](const NodeRecord& node) {
        return node.exchanges().after_failure() && IsExchanging(node);
      });
  if (goes_on) return;
  for (NodeRecord& node : *state_.mutable_nodes()) {
    if (!node.exchanges().after_failure() || WantsExchange(node)) continue;
    NodeToChange(node.hello().node_id())->mutable_exchanges()->set_after_failure(false);
  }
}

}  // namespace megascale::driver
