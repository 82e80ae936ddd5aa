#include "controlplane/driver/core/desired_states.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/exchanges/exchanges.h"
#include "runtime/base/checksum.h"
#include "runtime/job/data_digest.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace pb = megascale::driver::v1;

agent::DesiredJob::Phase PhaseOf(pb::Stage stage) {
  switch (stage) {
    case pb::STAGE_PREFLIGHT:
      return agent::DesiredJob::PHASE_PREFLIGHT;
    case pb::STAGE_RUN:
      return agent::DesiredJob::PHASE_RUN;
    case pb::STAGE_STOP:
    case pb::STAGE_LEAVE:
      return agent::DesiredJob::PHASE_STOP;
    case pb::STAGE_RETAIN:  // the agent that deletes is told so
    case pb::STAGE_FENCE:
    case pb::STAGE_BACKOFF:
    case pb::STAGE_WAIT_FOR_SLOTS:
      return agent::DesiredJob::PHASE_HOLD;
    default:
      return agent::DesiredJob::PHASE_UNSPECIFIED;
  }
}

// The attempt's secret, with which the peers' sockets authenticate each other. Only the holder of
// the job's seed can make it.
std::string SecretOf(const JobRecord& job) {
  return base::Sha256Hex(
      absl::StrCat(job.submitted().secret_seed(), "/", JobId(job), "/", job.attempt()));
}

// Adds the placements as runs of ranks, because each of thousands of agents gets all ranks.
void AddRuns(const JobRecord& job, agent::DesiredJob* desired) {
  agent::Placement* run = nullptr;
  for (const agent::Placement& placement : job.placements()) {
    if (run != nullptr && run->node_id() == placement.node_id() &&
        run->rank() + run->num_ranks() == placement.rank()) {
      run->set_num_ranks(run->num_ranks() + 1);
      continue;
    }
    run = desired->add_placements();
    *run = placement;
    run->set_num_ranks(1);
  }
}

// Agents of the release before know no owners: theirs would neither claim the directory nor write
// the owner that the others look for. Owners and bound addresses came with one release.
bool KnowsOwners(const JobRecord& job) { return job.binds_address(); }

// The fields that stay the same during an attempt; DesiredJob.as_before lists them.
agent::DesiredJob AttemptOf(const JobRecord& job) {
  agent::DesiredJob desired;
  *desired.mutable_spec() = job.submitted().spec();
  AddRuns(job, &desired);
  desired.set_secret(SecretOf(job));
  desired.set_binds_address(job.binds_address());
  desired.set_evaluates(job.evaluates());
  desired.set_checkpoint_directory(CheckpointDirectory(job));
  desired.set_from_checkpoint(job.submitted().from_checkpoint());
  *desired.mutable_allow_changed() = job.submitted().allow_changed();
  return desired;
}

// Returns the fingerprint that the job's preflights must find; null: none is known yet.
const megascale::checkpoint::v1::DataFingerprint* DataOf(const JobRecord& job) {
  if (job.has_data()) return &job.data();
  // As an older driver left it.
  const bool is_known = job.has_restore() && job.preflights_size() > 0;
  return is_known ? &job.preflights(0).preflight().data() : nullptr;
}

// The other fields that are equal for all agents of the job.
agent::DesiredJob CommonOf(const JobRecord& job) {
  agent::DesiredJob desired;
  desired.set_job_id(JobId(job));
  desired.set_attempt(job.attempt());
  desired.set_phase(PhaseOf(job.stage()));
  *desired.mutable_restore() = job.restore();
  desired.set_take_over(job.submitted().take_over());
  desired.set_owns_directory(job.owns_directory());
  desired.set_ran_here(job.has_data());
  if (job.has_cancel()) {
    *desired.mutable_stop_grace() = job.cancel().grace();
    desired.set_stop_with_checkpoint(job.cancel().checkpoint());
  } else if (job.stage() == pb::STAGE_LEAVE) {
    *desired.mutable_stop_grace() = job.submitted().spec().fault().progress_timeout();
    desired.set_stop_with_checkpoint(true);
  }
  if (const auto* data = DataOf(job)) *desired.mutable_data() = job::DigestOf(*data);
  for (const auto& manifest : job.committed()) {
    auto* id = desired.add_committed();
    id->set_attempt(manifest.attempt());
    id->set_step(manifest.step());
  }
  return desired;
}

// Tells an agent of an older version the list of files. Without the list nothing is told: then the
// agent's preflight finds its own list, which the driver compares.
void SetList(const megascale::checkpoint::v1::DataFingerprint& data, agent::DesiredJob* desired) {
  *desired->mutable_data() = job::ListOf(data);
  if (data.num_files() > 0 && data.file_sha256().empty()) desired->clear_data();
}

// The fields for the agent of rank 0 only: its host writes manifests and deletes checkpoints.
void AddFirst(const JobRecord& job, agent::DesiredJob* desired) {
  desired->set_delete_checkpoints(true);
  for (const int64_t step : job.finalize()) {
    if (step < NewestCommittedStep(job)) continue;  // its shards may be deleted
    auto* id = desired->add_finalize();
    id->set_attempt(job.attempt());
    id->set_step(step);
  }
}

}  // namespace

bool DesiredStates::WantsTest(const NodeRecord& node) const {
  return IsTestDue(node) && busy_.count(node.hello().node_id()) == 0;
}

const DesiredParts::Part& DesiredParts::Of(const JobRecord& job) {
  const auto [found, is_new] = parts_.try_emplace(JobId(job));
  if (is_new) Make(job, &found->second);
  return found->second;
}

std::set<std::string> DesiredParts::Update(const IndexedState& state,
                                           const JobIndex::Touched& touched) {
  std::set<std::string> nodes = touched.nodes;
  nodes.insert(touched.node_records.begin(), touched.node_records.end());
  for (const std::string& job_id : touched.jobs) {
    const int place = state.index().PlaceOf(job_id);
    if (place < 0 || !HoldsSlots(state.state().jobs(place))) {
      parts_.erase(job_id);
    } else if (Refresh(state.state().jobs(place)) ||
               state.state().jobs(place).stage() == pb::STAGE_RETAIN) {  // which node retains
      const std::vector<std::string>& of_job = state.index().NodesAt(place);
      nodes.insert(of_job.begin(), of_job.end());
    }
  }
  return nodes;
}

bool DesiredParts::Refresh(const JobRecord& job) {
  Part& part = parts_[JobId(job)];
  const std::string print = part.print;
  const std::string first_print = part.first_print;
  Make(job, &part);
  return part.print != print || part.first_print != first_print;
}

// Only a new attempt places ranks again; within an attempt the placements may only be cleared.
void DesiredParts::Make(const JobRecord& job, Part* part) {
  if (part->number != job.attempt() || part->num_ranks != job.placements_size()) {
    part->number = job.attempt();
    part->num_ranks = job.placements_size();
    part->attempt = AttemptOf(job);
    part->attempt_print = base::Sha256Hex(part->attempt.SerializeAsString());
  }
  part->common = CommonOf(job);
  part->print =
      base::Sha256Hex(absl::StrCat(part->attempt_print, part->common.SerializeAsString()));
  agent::DesiredJob first;
  AddFirst(job, &first);
  part->first_print = base::Sha256Hex(first.SerializeAsString());
}

DesiredStates::DesiredStates(const DriverState& state, const JobIndex& index, DesiredParts* parts)
    : state_(state), index_(index), parts_(*parts) {
  if (std::any_of(state.nodes().begin(), state.nodes().end(), IsTestDue)) busy_ = BusyNodes(state);
}

DesiredStates::DesiredStates(const DriverState& state)
    : state_(state), own_index_(state), index_(*own_index_), parts_(own_parts_) {
  if (std::any_of(state.nodes().begin(), state.nodes().end(), IsTestDue)) busy_ = BusyNodes(state);
}

std::vector<const JobRecord*> DesiredStates::JobsOf(const NodeRecord& node) const {
  std::vector<const JobRecord*> jobs;
  for (const int place : index_.On(node.hello().node_id())) {
    const JobRecord& job = state_.jobs(place);
    if (!HasLeft(job, node)) jobs.push_back(&job);
  }
  return jobs;
}

bool DesiredStates::Retains(const JobRecord& job, const std::string& node_id) const {
  return job.stage() == pb::STAGE_RETAIN && RetainingNodeOf(state_, job) == node_id;
}

std::string DesiredStates::Fingerprint(const std::string& node_id) const {
  const NodeRecord* node = FindNode(state_, node_id);
  if (node == nullptr) return "";
  std::string print = absl::StrCat(state_.epoch(), " ", node->hello().incarnation(),
                                   node->draining() ? " drains" : "");
  if (WantsTest(*node)) absl::StrAppend(&print, " test ", node->test().test().id());
  const pb::Exchange* exchange = FindExchange(state_, *node);
  if (exchange != nullptr) absl::StrAppend(&print, " exchange ", exchange->id());
  for (const JobRecord* job : JobsOf(*node)) {
    const DesiredParts::Part& part = parts_.Of(*job);
    absl::StrAppend(&print, " ", part.print);
    if (node_id == NodeOfRank(*job, 0)) absl::StrAppend(&print, "+", part.first_print);
    if (Retains(*job, node_id)) absl::StrAppend(&print, " retains");
  }
  return print;
}

agent::DesiredState DesiredStates::For(const std::string& node_id,
                                       const std::map<std::string, int64_t>& known) const {
  agent::DesiredState desired;
  desired.set_version(VersionOfEvent(state_.num_events()));
  desired.set_epoch(state_.epoch());
  const NodeRecord* node = FindNode(state_, node_id);
  if (node == nullptr) return desired;
  desired.set_incarnation(node->hello().incarnation());
  desired.set_draining(node->draining());
  desired.set_data_digests(true);
  desired.set_store_many_keys(true);
  if (WantsTest(*node)) {
    auto* test = desired.mutable_machine_test();
    test->set_id(node->test().test().id());
    test->set_kind(node->test().test().kind());
    *test->mutable_directories() = node->test().directories();
  } else if (const pb::Exchange* exchange = FindExchange(state_, *node); exchange != nullptr) {
    *desired.mutable_machine_test() = RequestOf(state_, *exchange, node_id);
  }
  for (const JobRecord* record : JobsOf(*node)) {
    const DesiredParts::Part& part = parts_.Of(*record);
    agent::DesiredJob* job = desired.add_jobs();
    *job = part.common;
    if (job->has_data() && !node->hello().data_digests()) SetList(*DataOf(*record), job);
    const auto attempt = known.find(job->job_id());
    if (attempt != known.end() && attempt->second == job->attempt()) {
      job->set_as_before(true);
    } else {
      job->MergeFrom(part.attempt);
      if (KnowsOwners(*record)) *job->mutable_owner() = OwnerOf(state_, *record);
    }
    if (record->restore().attempt() > 0) {
      *job->mutable_restore()->mutable_owner() = OwnerOf(state_, *record);
    }
    if (node_id == NodeOfRank(*record, 0)) AddFirst(*record, job);
    if (!Retains(*record, node_id)) continue;
    job->set_phase(agent::DesiredJob::PHASE_RETAIN);
    job->set_delete_checkpoints(true);
  }
  return desired;
}

}  // namespace megascale::driver
