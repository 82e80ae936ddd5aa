// The part of driver_core.h that decides whether a machine or a job is at fault, and that keeps the
// pools of machines.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/transition.h"
#include "controlplane/driver/exchanges/failed_links.h"
#include "controlplane/driver/exchanges/party.h"
#include "runtime/base/text/shortlist.h"

namespace megascale::driver {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;

namespace {

// This many parties whose nodes refuse the job mean that the job cannot work anywhere.
constexpr size_t kRefusingPartiesMax = 3;

}  // namespace

// --- pools ------------------------------------------------------------------------------------

bool Transition::OnNodesForgotten(const pb::NodesForgotten& forgotten) {
  const std::set<std::string> ids(forgotten.node_ids().begin(), forgotten.node_ids().end());
  auto* nodes = state_.mutable_nodes();
  const auto is_forgotten = [&](const NodeRecord& node) {
    return !node.alive() && ids.count(node.hello().node_id()) > 0;
  };
  for (NodeRecord& node : *nodes) {
    if (is_forgotten(node)) ClearExchanges(&node);
  }
  const auto kept = std::remove_if(nodes->begin(), nodes->end(), is_forgotten);
  if (kept == nodes->end()) return false;
  nodes->erase(kept, nodes->end());
  index_.TouchNodes();
  return true;
}

bool Transition::OnNodeQuarantined(const pb::NodeQuarantined& quarantined) {
  const NodeRecord* node = FindNode(state_, quarantined.node_id());
  if (node == nullptr || node->has_quarantine()) return false;
  Quarantine(quarantined.node_id(), quarantined.evidence());
  return true;
}

bool Transition::OnNodeSpareSet(const pb::NodeSpareSet& spare_set) {
  NodeRecord* node = NodeToChange(spare_set.node_id());
  if (node == nullptr || node->spare() == spare_set.spare()) return false;
  node->set_spare(spare_set.spare());
  return true;
}

// The first evidence stays: what follows may be its consequence.
void Transition::Quarantine(const std::string& node_id, const std::string& evidence) {
  NodeRecord* node = NodeToChange(node_id);
  if (node == nullptr || node->has_quarantine()) return;
  node->mutable_quarantine()->set_evidence(evidence);
  node->mutable_quarantine()->set_since_unix_nanos(event_.time_unix_nanos());
  Leave(node_id, "NodeQuarantined");
}

// --- processes that cannot be ended -------------------------------------------------------------

// These processes can commit nothing. Nothing else starts on their machine, so the job may go on
// elsewhere.
bool Transition::GiveUpUnfenced(JobRecord* job) {
  std::vector<std::string> nodes = UnfencedNodesOf(state_, *job);
  const auto came_later = [&](const std::string& node_id) {
    const int64_t since = FindNode(state_, node_id)->joined_unix_nanos();
    const int64_t age = event_.time_unix_nanos() - since;
    return since != 0 && age >= 0 && age < absl::ToInt64Nanoseconds(kFenceTimeout);
  };
  const bool ends = job->has_cancel() || HasAllSteps(*job);
  if (state_.rules() >= 6) {
    const auto late = std::remove_if(nodes.begin(), nodes.end(), came_later);
    // A job that ended now would leave their processes to nobody.
    if (ends && late != nodes.end()) return false;
    nodes.erase(late, nodes.end());
  }
  if (nodes.empty()) return false;
  if (ends) EndUnfenced(job);
  for (const std::string& node_id : nodes) {
    Quarantine(node_id,
               absl::StrCat("could not end the processes of attempt ", job->attempt(), " of job ",
                            JobId(*job),
                            " in time: look there for processes that hang in storage or in a "
                            "device, and restart the machine if need be"));
    if (!IsTerminal(*job)) job->add_fenced()->set_node_id(node_id);
  }
  return true;
}

// --- preflights after the first attempt ---------------------------------------------------------

void Transition::RefuseNode(JobRecord* job, const PreflightRefusal& refusal) {
  const NodeRecord* node = FindNode(state_, refusal.node_id);
  if (node == nullptr) return Refuse(job, refusal);
  auto* refusing = job->add_refusing();
  refusing->set_node_id(refusal.node_id);
  refusing->set_incarnation(node->hello().incarnation());
  refusing->set_message(refusal.message);
  if (state_.rules() >= 7) refusing->set_attempt(job->attempt());
  refusing->set_storage_away(refusal.storage_away);
  pb::Failure found;
  found.mutable_culprit()->set_node_id(refusal.node_id);
  found.mutable_culprit()->set_rank(-1);
  found.mutable_culprit()->set_failure_class(telemetry::FAILURE_CLASS_REFUSED);
  found.mutable_culprit()->set_evidence(
      absl::StrCat("its preflight refused the job: ", refusal.message));
  Fail(job, std::move(found));
}

size_t Transition::NumParties(const std::set<std::string>& node_ids) const {
  if (state_.rules() < 10) return node_ids.size();
  std::set<std::string> parties;
  for (const std::string& node_id : node_ids) {
    const NodeRecord* node = FindNode(state_, node_id);
    const bool is_claim = node != nullptr && !node->certificate().empty();
    parties.insert(is_claim ? MachineOf(*node) : node_id);
  }
  return parties.size();
}

// Costs no attempt of the job's budget: the number of nodes that may refuse it bounds these. A node
// that ran the job before, and refuses it now, is no reason to wait for another one.
void Transition::AfterRefusal(JobRecord* job) {
  const std::set<std::string> refusing = RefusingNodesOf(state_, *job);
  const bool only_new =
      std::none_of(job->preflights().begin(), job->preflights().end(),
                   [&](const auto& preflight) { return refusing.count(preflight.node_id()) > 0; });
  const bool may_work_elsewhere = only_new || HasRoomWithout(state_, *job, refusing);
  std::set<std::string> for_good = refusing;
  for (const auto& entry : job->refusing()) {
    if (entry.storage_away()) for_good.erase(entry.node_id());
  }
  if (NumParties(for_good) < kRefusingPartiesMax && may_work_elsewhere) {
    return Enter(job, pb::STAGE_WAIT_FOR_SLOTS);
  }
  const std::vector<std::string> nodes(refusing.begin(), refusing.end());
  End(job, control::JOB_STATE_FAILED, ReasonOf(job->culprit()),
      absl::StrCat(base::Shortlist(nodes), nodes.size() == 1 ? " refuses" : " refuse",
                   " the job; the last: ", Describe(job->culprit())));
}

// --- links --------------------------------------------------------------------------------------

void Transition::NoteUnreached(const JobRecord& job, const agent::RankFailure& failure,
                               pb::Failure* found) const {
  constexpr int kRanksMax = 64;
  Culprit* culprit = found->mutable_culprit();
  if (culprit->failure_class() != telemetry::FAILURE_CLASS_ABORTED) return;
  for (const int rank : failure.unreached_ranks()) {
    const NodeRecord* peer = FindNode(state_, NodeOfRank(job, rank));
    const bool is_apart = peer != nullptr && peer->hello().node_id() != culprit->node_id();
    if (!is_apart || !peer->alive() || found->unreached_ranks_size() >= kRanksMax) continue;
    found->add_unreached_ranks(rank);
  }
  if (found->unreached_ranks().empty()) return;
  culprit->set_failure_class(telemetry::FAILURE_CLASS_LINK);
  culprit->set_peer_rank(found->unreached_ranks(0));
  culprit->set_peer_node_id(NodeOfRank(job, found->unreached_ranks(0)));
}

void Transition::NoteFailedLinks(const JobRecord& job) {
  for (const pb::Failure& failure : job.failures()) {
    for (const int rank : failure.unreached_ranks()) {
      NoteFailedLink(failure.culprit().node_id(), NodeOfRank(job, rank), event_.time_unix_nanos(),
                     &state_);
    }
  }
}

// --- budgets of failures ------------------------------------------------------------------------

void Transition::CountFailure(JobRecord* job) {
  if (job->progressed()) return ForgetFailures(job);
  if (state_.rules() < 4) {
    job->set_attempts_without_progress(job->attempts_without_progress() + 1);
    return;
  }
  if (job->causes_size() >= kFailuresMax) job->mutable_causes()->DeleteSubrange(0, 1);
  Culprit* cause = job->add_causes();
  *cause = job->culprit();
  cause->mutable_evidence()->resize(
      std::min(cause->evidence().size(), cause->evidence().find('\n')));
  if (IsFaultOfMachine(*job)) {
    job->set_machine_failures(job->machine_failures() + 1);
  } else {
    job->set_attempts_without_progress(job->attempts_without_progress() + 1);
  }
}

bool Transition::GaveUp(JobRecord* job) {
  const bool too_many = job->attempts_without_progress() >
                        job->submitted().spec().fault().max_restarts_without_progress();
  if (!too_many && job->machine_failures() <= kMachineFailuresMax) return false;
  End(job, control::JOB_STATE_FAILED, ReasonOf(job->culprit()),
      absl::StrCat(
          "gave up after ", too_many ? job->attempts_without_progress() : job->machine_failures(),
          " attempts in a row without progress", too_many ? "" : " that failures of machines ended",
          "; the last: ", Describe(job->culprit())));
  return true;
}

void Transition::BlameNodesLeft(JobRecord* job) {
  if (state_.rules() < 4) return;
  const std::vector<std::string> nodes = NodesOf(*job);
  for (const std::string& node_id : NodesThatFailedOften(*job)) {
    if (std::binary_search(nodes.begin(), nodes.end(), node_id)) continue;
    for (auto cause = job->causes().rbegin(); cause != job->causes().rend(); ++cause) {
      if (cause->node_id() != node_id || !MayBlameNode(*cause)) continue;
      Quarantine(node_id, absl::StrCat(kFailuresOfOneNodeMax, " attempts of job ", JobId(*job),
                                       " failed there, and it went on elsewhere; the last: ",
                                       Describe(*cause)));
      break;
    }
  }
  ForgetFailures(job);
}

// --- machine tests ------------------------------------------------------------------------------

// An agent whose version cannot test its machine counts as tested.
void Transition::DemandTest(NodeRecord* node, const std::string& why, const JobRecord* job) {
  if (state_.machine_tests() == agent::TEST_KIND_UNSPECIFIED || !node->hello().tests_machine()) {
    return;
  }
  const bool passed = node->test().test().state() == agent::MachineTest::STATE_PASSED;
  const bool again = job != nullptr && (passed || node->test().again());
  ClearExchanges(node);  // they follow once it has passed
  pb::NodeTest* test = node->mutable_test();
  test->Clear();
  test->set_why(why);
  test->set_again(again);
  test->mutable_test()->set_id(state_.num_events());
  test->mutable_test()->set_kind(state_.machine_tests());
  test->mutable_test()->set_state(agent::MachineTest::STATE_RUNNING);
  if (job != nullptr) test->add_directories(CheckpointDirectory(*job));
}

void Transition::TestAfterFailure(const JobRecord& job) {
  NodeRecord* node = NodeToChange(job.culprit().node_id());
  if (node == nullptr || !node->alive() || IsTestDue(*node) || !CouldBeOfMachine(job)) return;
  DemandTest(node, absl::StrCat("job ", JobId(job), ": ", Describe(job.culprit())), &job);
}

bool Transition::OnMachineTested(const pb::MachineTested& tested) {
  NodeRecord* node = NodeToChange(tested.node_id());
  if (node == nullptr || !IsTestDue(*node) || node->hello().incarnation() != tested.incarnation() ||
      node->test().test().id() != tested.test().id() ||
      tested.test().state() < agent::MachineTest::STATE_PASSED) {
    return false;
  }
  *node->mutable_test()->mutable_test() = tested.test();
  node->mutable_test()->set_ended_unix_nanos(event_.time_unix_nanos());
  if (tested.test().state() == agent::MachineTest::STATE_FAILED) {
    Quarantine(tested.node_id(), absl::StrCat("machine test: ", tested.test().evidence()));
  } else {
    DemandExchanges(node, node->test().why(), node->test().again());
  }
  return true;
}

void Transition::SetMachineTests(agent::TestKind kind) {
  state_.set_machine_tests(kind);
  const std::set<std::string> busy =
      state_.rules() < 6 ? std::set<std::string>() : BusyNodes(state_);
  for (NodeRecord& node : *state_.mutable_nodes()) {
    if (kind == agent::TEST_KIND_UNSPECIFIED) {
      node.clear_test();
      node.clear_exchanges();
    } else if ((node.alive() || state_.rules() >= 6) && !node.has_test()) {
      DemandTestBesideJobs(&node, busy);
    }
  }
}

// The jobs there go on, and others may start beside them.
void Transition::DemandTestBesideJobs(NodeRecord* node, const std::set<std::string>& busy) {
  DemandTest(node, "the driver tests machines now", nullptr);
  if (node->has_test() && busy.count(node->hello().node_id()) > 0) {
    node->mutable_test()->set_again(true);
  }
}

// --- agents that are busy -----------------------------------------------------------------------

// A job is not told to begin where an agent could not carry it out.
bool Transition::OnNodeBusy(const pb::NodeBusy& busy) {
  NodeRecord* node = NodeToChange(busy.node_id());
  if (node == nullptr || !node->alive() || node->busy() == busy.busy() ||
      node->hello().incarnation() != busy.incarnation()) {
    return false;
  }
  node->set_busy(busy.busy());
  if (busy.busy()) Leave(busy.node_id(), "MachineTestHangs");
  return true;
}

// --- epochs -------------------------------------------------------------------------------------

// The agents may run attempts that this log does not know. They end all processes when they hear of
// the new epoch, and each job goes on with another attempt. That is no failure.
void Transition::BeginEpoch() {
  for (NodeRecord& node : *state_.mutable_nodes()) {  // the copy may lack later results
    if (!node.alive() && state_.rules() < 6) continue;
    DemandTest(&node, "the driver's log was restored from a copy", nullptr);
  }
  for (JobRecord& job : *state_.mutable_jobs()) {
    if (IsTerminal(job)) continue;
    if (job.stage() == pb::STAGE_RETAIN) {  // nothing of it runs but the deletion
      Finish(&job, "the driver's log was restored from a copy");
      continue;
    }
    job.set_attempt(job.attempt() + kAttemptsOfAnEpoch);
    // Storage may be away, and the copy does not know what became of the checkpoints.
    if (state_.rules() >= 10) AskForPreflights(&job);
    // A queued job may have run after the copy was made. It is queued again once it is fenced.
    if (!HoldsSlots(job) && state_.rules() < 5) continue;
    job.clear_fenced();
    job.set_stage(pb::STAGE_FENCE);
    job.set_stage_event(state_.num_events());
    if (job.has_cancel()) continue;
    job.mutable_leave()->clear_node_id();
    job.mutable_leave()->set_reason(kDriverRestored);
    SetStatus(&job, control::JOB_STATE_RECOVERING, kDriverRestored,
              "the driver's log was restored from a copy: all processes end, and another attempt "
              "follows");
  }
}

// Agents keep no memory of an older epoch, so there are no snapshots.
bool Transition::OnEpochFenced(const pb::EpochFenced& fenced) {
  NodeRecord* node = NodeToChange(fenced.node_id());
  if (node == nullptr || !node->alive() || node->hello().incarnation() != fenced.incarnation() ||
      fenced.epoch() != state_.epoch() || node->fenced_epoch() == fenced.epoch()) {
    return false;
  }
  node->set_fenced_epoch(fenced.epoch());
  const JobIndex::Places restored = index_.restored();
  for (const int place : restored) {
    JobRecord& job = *state_.mutable_jobs(place);
    if (!IsFencedEverywhere(state_, job) || IsFenced(job, fenced.node_id())) continue;
    const std::vector<std::string> nodes = NodesOf(job);
    if (!std::binary_search(nodes.begin(), nodes.end(), fenced.node_id())) continue;
    Touch(job);
    job.add_fenced()->set_node_id(fenced.node_id());
  }
  return true;
}

}  // namespace megascale::driver
