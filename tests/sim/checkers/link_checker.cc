#include "tests/sim/checkers/link_checker.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/placement.h"
#include "runtime/job/job_spec.h"

namespace megascale::sim {

using driver::FindJob;
using driver::JobId;

namespace {

// Returns how many groups of tensor-parallel peers of the job have room on these nodes.
int NumGroups(const std::map<std::string, int>& slots, const JobRecord& job) {
  int num_groups = 0;
  for (const auto& [node_id, count] : slots) {
    num_groups += std::max(0, count) / job::TensorSize(job.submitted().spec());
  }
  return num_groups;
}

bool Fits(const std::map<std::string, int>& slots, const JobRecord& job) {
  const auto& spec = job.submitted().spec();
  return NumGroups(slots, job) >= job::WorldSize(spec) / job::TensorSize(spec);
}

}  // namespace

// --- LinksAreAvoided --------------------------------------------------------------------------

// Counts what was free both before and after the round, on machines of one kind, and on nodes that
// no test holds up and that do not refuse the job.
bool LinkAvoidedChecker::HasRoom(const DriverState& before, const DriverState& after,
                                 const JobRecord& job) const {
  if (after.rules() < driver::kRules || !world_.numerics.empty()) return false;
  std::map<std::string, int> free;
  for (const driver::NodeRecord& node : after.nodes()) {
    const std::string& node_id = node.hello().node_id();
    const driver::NodeRecord* was = driver::FindNode(before, node_id);
    const bool is_at_end = std::any_of(links_.begin(), links_.end(), [&](const auto& link) {
      return link.first == node_id || link.second == node_id;
    });
    const bool takes = was != nullptr && driver::TakesRanks(*was) && driver::TakesRanks(node) &&
                       !node.spare() && !was->spare();
    if (takes && !is_at_end) free[node_id] = node.hello().num_slots();
  }
  for (const DriverState* state : {&before, &after}) {
    for (const std::string& node_id : driver::NodesInTest(*state)) free.erase(node_id);
    for (const std::string& node_id : driver::RefusingNodesOf(*state, job)) free.erase(node_id);
    for (const JobRecord& other : state->jobs()) {
      if (JobId(other) == JobId(job) || !driver::HoldsSlots(other)) continue;
      for (const auto& placement : other.placements()) --free[placement.node_id()];
    }
  }
  return Fits(free, job);
}

namespace {

bool HasPassed(const driver::NodeRecord& node, const std::string& other) {
  const auto passes = [](const control::ExchangeResult& result) {
    return result.failure().empty() && result.note().empty();
  };
  const auto& results = node.exchanges().results();
  const auto& round = node.exchanges().round();
  return std::any_of(results.begin(), results.end(),
                     [&](const auto& one) { return one.node_id() == other && passes(one); }) ||
         (passes(round) && std::count(round.node_ids().begin(), round.node_ids().end(), other) > 0);
}

// The node has exchanged bytes with the other one, or an operator has uncordoned it.
bool IsMended(const DriverState& before, const DriverState& after, const std::string& node_id,
              const std::string& other) {
  const driver::NodeRecord* was = driver::FindNode(before, node_id);
  const driver::NodeRecord* is = driver::FindNode(after, node_id);
  if (was == nullptr || is == nullptr) return true;  // it is forgotten
  return HasPassed(*is, other) || (was->evicted() && !is->evicted());
}

}  // namespace

void LinkAvoidedChecker::OnState(const DriverState& before, const DriverState& after) {
  for (const JobRecord& job : after.jobs()) {
    const JobRecord* old = FindJob(before, JobId(job));
    if (old == nullptr || old->attempt() == job.attempt()) continue;
    const std::vector<std::string> nodes = driver::NodesOf(job);
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (size_t j = i + 1; j < nodes.size(); ++j) {
        if (!IsKnown(nodes[i], nodes[j]) || !HasRoom(before, after, job)) continue;
        world_.Violate(
            "LinksAreAvoided",
            absl::StrCat("job ", JobId(job), ", attempt ", job.attempt(), " has ranks on ",
                         nodes[i], " and ", nodes[j], ", between which a link failed"));
      }
    }
  }
  // What the driver learns in this round counts from the next one on.
  for (const JobRecord& job : after.jobs()) {
    const control::Culprit& culprit = job.culprit();
    const bool has_ended =
        job.stage() == driver::v1::STAGE_BACKOFF || job.stage() == driver::v1::STAGE_WAIT_FOR_SLOTS;
    const bool is_of_link = culprit.failure_class() == telemetry::FAILURE_CLASS_LINK &&
                            culprit.attempt() == job.attempt();
    if (has_ended && is_of_link) {
      links_.insert(std::minmax(culprit.node_id(), culprit.peer_node_id()));
    }
    if (job.state() != control::JOB_STATE_RUNNING) continue;
    const std::vector<std::string> nodes = driver::NodesOf(job);
    std::erase_if(links_, [&](const Link& link) {  // its ranks have joined over it
      return std::binary_search(nodes.begin(), nodes.end(), link.first) &&
             std::binary_search(nodes.begin(), nodes.end(), link.second);
    });
  }
  std::erase_if(links_, [&](const Link& link) {
    return IsMended(before, after, link.first, link.second) ||
           IsMended(before, after, link.second, link.first);
  });
}

// --- LinksEndNoJob ----------------------------------------------------------------------------

bool LinkOnlyChecker::FitsWithoutAnEnd(const DriverState& state, const JobRecord& job) const {
  if (world_.cut_until.empty()) return true;
  const auto& [one, other] = world_.cut_until.begin()->first;
  for (const std::string& end : {one, other}) {
    std::map<std::string, int> slots;
    for (const driver::NodeRecord& node : state.nodes()) {
      const bool counts = node.alive() && !node.spare() && node.hello().node_id() != end;
      if (counts) slots[node.hello().node_id()] = node.hello().num_slots();
    }
    if (Fits(slots, job)) return true;
  }
  return false;
}

void LinkOnlyChecker::CheckCulprit(const JobRecord& job) const {
  const control::Culprit& culprit = job.culprit();
  const bool is_cut = world_.WasCut(culprit.node_id(), culprit.peer_node_id());
  const bool is_refused = culprit.failure_class() == telemetry::FAILURE_CLASS_REFUSED;
  if (is_refused || (is_cut && culprit.failure_class() == telemetry::FAILURE_CLASS_LINK)) return;
  world_.Violate("LinksEndNoJob",
                 absl::StrCat("job ", JobId(job), ", attempt ", culprit.attempt(), " names rank ",
                              culprit.rank(), " on ", culprit.node_id(), " and ",
                              culprit.peer_node_id(), ": ", culprit.evidence()));
}

void LinkOnlyChecker::OnState(const DriverState& before, const DriverState& after) {
  for (const driver::NodeRecord& node : after.nodes()) {
    if (!node.has_quarantine()) continue;
    world_.Violate(
        "LinksEndNoJob",
        absl::StrCat(node.hello().node_id(), " is quarantined: ", node.quarantine().evidence()));
  }
  for (const JobRecord& job : after.jobs()) {
    // What only follows from another failure may be heard first; a better cause takes its place.
    const bool may_follow = job.culprit().failure_class() == telemetry::FAILURE_CLASS_ABORTED &&
                            job.culprit().attempt() == job.attempt() && !driver::IsTerminal(job);
    if (job.has_culprit() && !may_follow) CheckCulprit(job);
    const bool is_refused = job.culprit().failure_class() == telemetry::FAILURE_CLASS_REFUSED;
    if (job.state() != control::JOB_STATE_FAILED || is_refused) continue;
    if (!FitsWithoutAnEnd(after, job)) continue;
    world_.Violate("LinksEndNoJob", absl::StrCat("job ", JobId(job), " failed, though it fits on ",
                                                 "the machines without the link: ", job.message()));
  }
}

}  // namespace megascale::sim
