#include "controlplane/driver/core/failure_detector.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/job/job_spec.h"
#include "runtime/plan/instruction.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;

absl::Duration HeartbeatTimeout(const JobRecord& job) {
  return job::ToDuration(job.submitted().spec().fault().heartbeat_timeout());
}

bool IsStarting(telemetry::Phase phase) {
  return phase == telemetry::PHASE_UNSPECIFIED || phase == telemetry::PHASE_STARTING ||
         phase == telemetry::PHASE_LOADING || phase == telemetry::PHASE_FIRST_STEP;
}

google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
  return proto;
}

// `now`: on the driver's monotonic clock.
Event RankFailedEvent(const JobRecord& job, int rank, const std::string& node_id,
                      const agent::RankFailure& failure, absl::Duration now) {
  Event event;
  auto* failed = event.mutable_rank_failed();
  failed->set_job_id(JobId(job));
  failed->set_attempt(job.attempt());
  failed->set_rank(rank);
  failed->set_node_id(node_id);
  *failed->mutable_failure() = failure;
  failed->mutable_failure()->clear_age_seconds();
  *failed->mutable_noticed_at() = ToProto(now - absl::Seconds(failure.age_seconds()));
  return event;
}

Event HungEvent(const JobRecord& job, int rank, const std::string& node_id,
                const std::string& evidence, absl::Duration now) {
  agent::RankFailure failure;
  failure.set_failure_class(telemetry::FAILURE_CLASS_HUNG);
  failure.set_message(evidence);
  return RankFailedEvent(job, rank, node_id, failure, now);
}

// On its own line, because one-line views show only the first.
std::string Recent(const telemetry::RankStatus& status) {
  return status.recent().empty() ? std::string() : absl::StrCat("\n", status.recent());
}

// The last word of `doing` is the id of the running instruction.
bool WaitsForPeers(absl::string_view doing) {
  const auto id = plan::InstructionId::Parse(doing.substr(doing.rfind(' ') + 1));
  return id.ok() && *id != plan::InstructionId() && plan::NeedsPeers(*id);
}

// Returns NodeFenced if the node has reconciled a desired state without processes of the job, and
// has none left.
std::optional<Event> FencedEvent(const JobRecord& job, const NodeRecord& node,
                                 const agent::ActualState& report, const agent::ActualJob& actual) {
  const bool wants_none = StopsAtStep(job) || job.stage() == pb::STAGE_FENCE ||
                          job.stage() == pb::STAGE_BACKOFF ||
                          job.stage() == pb::STAGE_WAIT_FOR_SLOTS;
  if (!wants_none || report.applied_version() < VersionOfEvent(job.stage_event()) ||
      actual.num_processes() > 0 || IsFenced(job, node.hello().node_id())) {
    return std::nullopt;
  }
  Event event;
  auto* fenced = event.mutable_node_fenced();
  fenced->set_job_id(JobId(job));
  fenced->set_attempt(job.attempt());
  fenced->set_node_id(node.hello().node_id());
  *fenced->mutable_snapshots() = actual.snapshots();
  return event;
}

bool IsCommitted(const JobRecord& job, int64_t attempt, int64_t step) {
  return std::any_of(job.committed().begin(), job.committed().end(), [&](const auto& known) {
    return known.attempt() == attempt && known.step() == step;
  });
}

void AddManifests(const JobRecord& job, const agent::ActualJob& report,
                  std::vector<Event>* events) {
  for (const auto& manifest : report.manifests()) {
    if (manifest.attempt() != job.attempt() || !job.has_restore()) continue;
    if (IsCommitted(job, manifest.attempt(), manifest.step())) continue;
    // A manifest older than a commit may be deleted by now: commits permit that.
    if (manifest.step() < NewestCommittedStep(job)) continue;
    Event event;
    event.mutable_manifest_written()->set_job_id(JobId(job));
    *event.mutable_manifest_written()->mutable_manifest() = manifest;
    events->push_back(std::move(event));
  }
}

}  // namespace

void FailureDetector::Advance(absl::Duration now) {
  awake_ += std::clamp(now - last_call_, absl::ZeroDuration(), kStallMax);
  last_call_ = std::max(last_call_, now);
}

absl::Duration FailureDetector::Since(std::map<std::string, Watched>* watched,
                                      const std::string& key, int64_t value) {
  auto [it, added] = watched->try_emplace(key, Watched{value, awake_});
  if (!added && it->second.value != value) it->second = Watched{value, awake_};
  return awake_ - it->second.since;
}

absl::Duration FailureDetector::InPhase(const JobRecord& job, int rank, telemetry::Phase phase) {
  std::vector<Watched>& ranks = phases_[JobId(job)];
  if (rank < 0 || rank >= job.placements_size()) return absl::ZeroDuration();
  ranks.resize(static_cast<size_t>(job.placements_size()));
  Watched& watched = ranks[static_cast<size_t>(rank)];
  const int64_t value = job.attempt() * 64 + phase;
  if (watched.value != value) watched = Watched{value, awake_};
  return awake_ - watched.since;
}

const std::vector<std::string>& FailureDetector::Nodes(const JobRecord& job) const {
  JobNodes& known = job_nodes_[JobId(job)];
  // Only a new attempt places ranks again; within an attempt the placements may only be cleared.
  if (known.attempt != job.attempt() || known.num_ranks != job.placements_size()) {
    known = JobNodes{job.attempt(), job.placements_size(), NodesOf(job)};
  }
  return known.nodes;
}

bool FailureDetector::IsOn(const JobRecord& job, const std::string& node_id) const {
  const std::vector<std::string>& nodes = Nodes(job);
  return std::binary_search(nodes.begin(), nodes.end(), node_id);
}

Contact FailureDetector::ContactWith(const std::string& node_id) const {
  const auto it = nodes_.find(node_id);
  if (it == nodes_.end()) return Contact::kUnknown;
  return awake_ - it->second.heard < node_timeout_ ? Contact::kHeard : Contact::kGone;
}

std::vector<Event> FailureDetector::OnHello(const DriverState& state, const agent::Hello& hello,
                                            absl::Duration now, const std::string& certificate) {
  Advance(now);
  Node& node = nodes_[hello.node_id()];
  if (node.hello.incarnation() != hello.incarnation()) node.report.Clear();
  node.hello = hello;
  node.heard = awake_;
  node.punctual = false;
  const NodeRecord* known = FindNode(state, hello.node_id());
  if (known != nullptr && known->alive() &&
      known->hello().SerializeAsString() == hello.SerializeAsString() &&
      (certificate.empty() || known->certificate() == certificate)) {
    return {};
  }
  Event event;
  *event.mutable_node_joined()->mutable_hello() = hello;
  event.mutable_node_joined()->set_certificate(certificate);
  return {event};
}

std::vector<Event> FailureDetector::OnReport(const DriverState& state, const std::string& node_id,
                                             const agent::ActualState& report, absl::Duration now) {
  Advance(now);
  auto it = nodes_.find(node_id);
  const NodeRecord* known = FindNode(state, node_id);
  if (it == nodes_.end() || known == nullptr ||
      it->second.hello.incarnation() != report.incarnation() ||
      known->hello().incarnation() != report.incarnation()) {
    return {};
  }
  Node& node = it->second;
  node.punctual = awake_ - node.heard < node_timeout_;
  node.heard = awake_;
  node.report = report;
  if (!known->alive()) {
    // The node was lost and is back. Its processes belong to an attempt that was given up.
    Event event;
    *event.mutable_node_joined()->mutable_hello() = node.hello;
    return {event};
  }
  std::vector<Event> events;
  if (report.draining() && !known->draining()) {
    Event event;
    event.mutable_node_draining()->set_node_id(node_id);
    event.mutable_node_draining()->set_incarnation(report.incarnation());
    events.push_back(std::move(event));
  }
  for (const JobRecord& job : state.jobs()) {
    if (!HoldsSlots(job) || !IsOn(job, node_id)) continue;
    const agent::ActualJob* found = LastReport(node_id, JobId(job));
    const agent::ActualJob nothing;
    const agent::ActualJob& actual = found != nullptr ? *found : nothing;
    if (actual.attempt() == job.attempt()) {
      std::vector<Event> more = VerdictsOf(job, *known, actual);
      events.insert(events.end(), more.begin(), more.end());
    }
    if (auto fenced = FencedEvent(job, *known, report, actual)) events.push_back(*fenced);
  }
  return events;
}

std::vector<Event> FailureDetector::VerdictsOf(const JobRecord& job, const NodeRecord& node,
                                               const agent::ActualJob& report) {
  std::vector<Event> events;
  if (job.stage() == pb::STAGE_PREFLIGHT) AddPreflight(job, node, report.preflight(), &events);
  const auto step = newest_step_.find(JobId(job));
  if (job.stage() == pb::STAGE_RUN) {
    AddTrainingStarted(job, &events);
    if (step != newest_step_.end() && step->second > job.best_step() && !job.progressed()) {
      AddProgress(job, &events);
    }
  } else if (job.stage() == pb::STAGE_LEAVE) {
    AddProgress(job, &events);  // no failure will tell the steps that it still makes
  }
  AddManifests(job, report, &events);
  AddStoredShards(job, report, &events);
  std::vector<Event> ends = RankVerdicts(job, node, report);
  std::vector<Event> failures;
  for (Event& end : ends) {
    if (end.has_rank_failed()) {
      failures.push_back(std::move(end));
    } else {
      events.push_back(std::move(end));
    }
  }
  if (!failures.empty()) AddFailures(job, std::move(failures), &events);
  return events;
}

void FailureDetector::AddPreflight(const JobRecord& job, const NodeRecord& node,
                                   const agent::Preflight& preflight,
                                   std::vector<Event>* events) const {
  const std::string& node_id = node.hello().node_id();
  Event event;
  if (preflight.state() == agent::Preflight::STATE_PASSED && !HasPreflight(job, node_id)) {
    auto* passed = event.mutable_preflight_passed();
    passed->set_job_id(JobId(job));
    passed->set_attempt(job.attempt());
    passed->set_node_id(node_id);
    *passed->mutable_preflight() = preflight;
  } else if (preflight.state() == agent::Preflight::STATE_REFUSED) {
    auto* refused = event.mutable_preflight_refused();
    refused->set_job_id(JobId(job));
    refused->set_attempt(job.attempt());
    refused->set_node_id(node_id);
    refused->set_message(preflight.message());
  } else {
    return;
  }
  events->push_back(std::move(event));
}

std::vector<Event> FailureDetector::RankVerdicts(const JobRecord& job, const NodeRecord& node,
                                                 const agent::ActualJob& report) const {
  std::vector<Event> events;
  const std::string& node_id = node.hello().node_id();
  const bool runs = job.stage() == pb::STAGE_RUN || StopsAtStep(job);
  const bool may_fail =
      runs || job.stage() == pb::STAGE_FENCE || job.stage() == pb::STAGE_PREFLIGHT;
  for (const auto& rank : report.ranks()) {
    const int index = rank.status().rank();
    if (NodeOfRank(job, index) != node_id || FindEnded(job, index) != nullptr) continue;
    const bool stopped = rank.state() == agent::ActualRank::STATE_STOPPED;
    if (rank.state() == agent::ActualRank::STATE_FAILED && may_fail) {
      events.push_back(RankFailedEvent(job, index, node_id, rank.failure(), last_call_));
    } else if ((stopped || rank.state() == agent::ActualRank::STATE_FINISHED) && runs) {
      Event event;
      auto* ended = event.mutable_rank_ended();
      ended->set_job_id(JobId(job));
      ended->set_attempt(job.attempt());
      ended->set_rank(index);
      ended->set_stopped(stopped);
      ended->set_step(rank.status().step());
      events.push_back(std::move(event));
    }
  }
  if (report.host().has_failure() && !job.host_failed() && may_fail) {
    events.push_back(RankFailedEvent(job, -1, node_id, report.host().failure(), last_call_));
  }
  return events;
}

void FailureDetector::AddProgress(const JobRecord& job, std::vector<Event>* events) const {
  const auto step = newest_step_.find(JobId(job));
  if (step != newest_step_.end() && step->second > job.best_step()) {
    Event event;
    auto* progressed = event.mutable_attempt_progressed();
    progressed->set_job_id(JobId(job));
    progressed->set_attempt(job.attempt());
    progressed->set_step(step->second);
    events->push_back(std::move(event));
  }
}

void FailureDetector::AddFailures(const JobRecord& job, std::vector<Event> failures,
                                  std::vector<Event>* events) const {
  AddProgress(job, events);
  for (Event& failure : failures) events->push_back(std::move(failure));
}

// Every report may be the last missing one. The first node with a rank that still loads ends the
// search.
void FailureDetector::AddTrainingStarted(const JobRecord& job, std::vector<Event>* events) const {
  if (job.state() != control::JOB_STATE_STARTING) return;
  int started = 0;
  for (const std::string& node_id : Nodes(job)) {
    const agent::ActualJob* actual = LastReport(node_id, JobId(job));
    if (actual == nullptr || actual->attempt() != job.attempt() || actual->ranks().empty()) return;
    for (const auto& rank : actual->ranks()) {
      if (rank.status().phase() < telemetry::PHASE_FIRST_STEP) return;
      ++started;
    }
  }
  if (started < WorldSize(job)) return;
  Event event;
  event.mutable_training_started()->set_job_id(JobId(job));
  event.mutable_training_started()->set_attempt(job.attempt());
  events->push_back(std::move(event));
}

bool FailureDetector::AllStored(const JobRecord& job, int64_t step) const {
  std::set<int> ranks;
  for (const std::string& node_id : Nodes(job)) {
    const agent::ActualJob* actual = LastReport(node_id, JobId(job));
    if (actual == nullptr) return false;
    const size_t before = ranks.size();
    for (const auto& shard : actual->shards()) {
      if (shard.attempt() == job.attempt() && shard.step() == step) ranks.insert(shard.rank());
    }
    if (ranks.size() == before) return false;
  }
  return static_cast<int>(ranks.size()) >= WorldSize(job);
}

// Appends ShardsStored for those steps in `report` of which every rank's shard is stored.
void FailureDetector::AddStoredShards(const JobRecord& job, const agent::ActualJob& report,
                                      std::vector<Event>* events) const {
  if (job.stage() != pb::STAGE_RUN && !StopsAtStep(job)) return;
  std::set<int64_t> steps;
  for (const auto& shard : report.shards()) {
    if (shard.attempt() == job.attempt()) steps.insert(shard.step());
  }
  for (const int64_t step : steps) {
    const auto& finalize = job.finalize();
    if (std::find(finalize.begin(), finalize.end(), step) != finalize.end()) continue;
    if (IsCommitted(job, job.attempt(), step)) continue;
    if (step < NewestCommittedStep(job)) continue;
    if (!AllStored(job, step)) continue;
    Event event;
    auto* stored = event.mutable_shards_stored();
    stored->set_job_id(JobId(job));
    stored->set_attempt(job.attempt());
    stored->set_step(step);
    events->push_back(std::move(event));
  }
}

// Checked on ticks, because ranks on other nodes may end after the report about retention.
void FailureDetector::AddRetentionEnded(const DriverState& state, const JobRecord& job,
                                        std::vector<Event>* events) const {
  if (!WaitsForRetention(state, job)) return;
  const agent::ActualJob* actual = LastReport(NodeOfRank(job, 0), JobId(job));
  const auto& newest = *job.committed().rbegin();
  if (actual == nullptr || actual->attempt() != job.attempt() ||
      actual->retained().attempt() != newest.attempt() ||
      actual->retained().step() != newest.step()) {
    return;
  }
  Event event;
  auto* ended = event.mutable_retention_ended();
  ended->set_job_id(JobId(job));
  ended->set_attempt(job.attempt());
  ended->set_step(newest.step());
  events->push_back(std::move(event));
}

std::vector<Event> FailureDetector::OnTick(const DriverState& state, absl::Duration now) {
  Advance(now);
  std::vector<Event> events;
  for (const NodeRecord& node : state.nodes()) {
    if (!node.alive()) continue;
    const std::string& node_id = node.hello().node_id();
    if (SilenceOf(node_id) <= node_timeout_) continue;
    Event event;
    event.mutable_node_lost()->set_node_id(node_id);
    event.mutable_node_lost()->set_incarnation(node.hello().incarnation());
    event.mutable_node_lost()->set_why(
        absl::StrCat("no heartbeat for ", absl::FormatDuration(node_timeout_)));
    *event.mutable_node_lost()->mutable_noticed_at() = ToProto(last_call_ - SilenceOf(node_id));
    for (const JobRecord& job : state.jobs()) {
      if (job.stage() == pb::STAGE_RUN) AddProgress(job, &events);
    }
    events.push_back(std::move(event));
  }
  for (const JobRecord& job : state.jobs()) {
    AddRetentionEnded(state, job, &events);
    if (job.stage() == pb::STAGE_RUN) AddStorageFailed(job, &events);
    if (IsTerminal(job)) {
      storage_.erase(JobId(job));
      newest_step_.erase(JobId(job));
      stages_.erase(JobId(job));
      phases_.erase(JobId(job));
      job_nodes_.erase(JobId(job));
      continue;
    }
    // A job that leaves a node waits for all of its ranks, too.
    if (job.stage() == pb::STAGE_RUN || job.stage() == pb::STAGE_LEAVE) AddHung(job, &events);
    if (job.stage() == pb::STAGE_RUN || job.stage() == pb::STAGE_PREFLIGHT) {
      AddOverdue(job, &events);
    }
  }
  return events;
}

std::optional<FailureDetector::Suspect> FailureDetector::SuspectOf(
    const JobRecord& job, const Node& node, const telemetry::RankStatus& status) {
  const auto& fault = job.submitted().spec().fault();
  const absl::Duration since_report = awake_ - node.heard;
  const absl::Duration in_phase = InPhase(job, status.rank(), status.phase());
  Suspect suspect;
  suspect.rank = status.rank();
  suspect.node_id = node.hello.node_id();
  suspect.waiting = WaitsForPeers(status.doing());
  const absl::Duration alive_age = absl::Seconds(status.alive_age_seconds());
  if (alive_age > HeartbeatTimeout(job)) {
    suspect.dead = true;
    suspect.age = alive_age;
    suspect.evidence = absl::StrCat(
        "its timer thread has not run for ",
        absl::FormatDuration(absl::Seconds(absl::ToInt64Seconds(alive_age))), " (process ",
        status.pid(), ", in ", status.doing().empty() ? "no instruction" : status.doing(), ")",
        Recent(status));
    return suspect;
  }
  const absl::Duration limit = job::ToDuration(
      IsStarting(status.phase()) ? fault.start_timeout() : fault.progress_timeout());
  // The limit of a phase counts from the phase's begin.
  // A rank without any report has been silent for as long as its attempt runs.
  const bool silent = status.progress_age_seconds() < 0;
  suspect.age =
      silent ? in_phase
             : std::min(absl::Seconds(status.progress_age_seconds()) + since_report, in_phase);
  if (suspect.age <= limit) return std::nullopt;
  // While ranks read a checkpoint for others, a rank that waits makes no progress of its own for as
  // long as that takes. Each rank that reads has its own limit.
  if (suspect.waiting && status.phase() == telemetry::PHASE_LOADING) return std::nullopt;
  suspect.evidence = absl::StrCat(
      "no progress for ", absl::FormatDuration(limit), " at step ", status.step(), " in ",
      status.doing().empty() ? "no instruction" : status.doing(), Recent(status));
  return suspect;
}

std::vector<FailureDetector::Suspect> FailureDetector::SuspectsOf(const JobRecord& job) {
  std::vector<Suspect> suspects;
  for (const std::string& node_id : Nodes(job)) {
    const agent::ActualJob* actual = LastReport(node_id, JobId(job));
    if (actual == nullptr || actual->attempt() != job.attempt()) continue;
    const Node& node = nodes_.at(node_id);
    for (const auto& rank : actual->ranks()) {
      if (rank.state() != agent::ActualRank::STATE_RUNNING) continue;
      // The report of an agent that stalled itself says nothing about its ranks.
      std::optional<Suspect> suspect = SuspectOf(job, node, rank.status());
      if (suspect.has_value() && node.punctual) suspects.push_back(*std::move(suspect));
    }
  }
  return suspects;
}

void FailureDetector::AddHung(const JobRecord& job, std::vector<Event>* events) {
  const std::vector<Suspect> suspects = SuspectsOf(job);
  if (suspects.empty()) return;
  const Suspect& worst =
      *std::max_element(suspects.begin(), suspects.end(), [](const Suspect& a, const Suspect& b) {
        return std::tuple(a.dead, !a.waiting, a.age, -a.rank) <
               std::tuple(b.dead, !b.waiting, b.age, -b.rank);
      });
  AddFailures(job, {HungEvent(job, worst.rank, worst.node_id, worst.evidence, last_call_)}, events);
}

void FailureDetector::AddOverdue(const JobRecord& job, std::vector<Event>* events) {
  const absl::Duration limit = job::ToDuration(job.submitted().spec().fault().start_timeout());
  if (Since(&stages_, JobId(job), job.stage_event()) <= limit) return;
  if (job.stage() == pb::STAGE_PREFLIGHT) {
    for (const std::string& node_id : Nodes(job)) {
      if (HasPreflight(job, node_id)) continue;
      const std::string evidence =
          absl::StrCat("its preflight did not end within ", absl::FormatDuration(limit));
      return AddFailures(job, {HungEvent(job, -1, node_id, evidence, last_call_)}, events);
    }
    return;
  }
  std::set<int> there;
  for (const std::string& node_id : Nodes(job)) {
    const agent::ActualJob* actual = LastReport(node_id, JobId(job));
    if (actual == nullptr || actual->attempt() != job.attempt()) continue;
    for (const auto& rank : actual->ranks()) there.insert(rank.status().rank());
  }
  for (const auto& placement : job.placements()) {
    if (there.count(placement.rank()) > 0) continue;
    if (FindEnded(job, placement.rank()) != nullptr) continue;
    const std::string evidence =
        absl::StrCat("was not started within ", absl::FormatDuration(limit));
    return AddFailures(
        job, {HungEvent(job, placement.rank(), placement.node_id(), evidence, last_call_)}, events);
  }
}

// Training goes on meanwhile. Only a commit ends the failure; one rank's stored shard proves
// little.
void FailureDetector::AddStorageFailed(const JobRecord& job, std::vector<Event>* events) {
  const int64_t newest = NewestCommittedStep(job);
  const auto known = storage_.find(JobId(job));
  if (known != storage_.end() && known->second.value != newest) storage_.erase(known);
  for (const std::string& node_id : Nodes(job)) {
    const agent::ActualJob* actual = LastReport(node_id, JobId(job));
    if (actual == nullptr || actual->attempt() != job.attempt()) continue;
    if (actual->storage_error().empty()) continue;
    const absl::Duration limit =
        job::ToDuration(job.submitted().spec().fault().checkpoint_timeout());
    // Unset in a log that was written before this limit existed.
    const bool limited = limit > absl::ZeroDuration();
    if (Since(&storage_, JobId(job), newest) <= limit || !limited || job.host_failed()) return;
    agent::RankFailure failure;
    failure.set_failure_class(telemetry::FAILURE_CLASS_STORAGE);
    failure.set_message(
        absl::StrCat("no checkpoint could be written for ", absl::FormatDuration(limit),
                     " (fault.checkpoint_timeout): ", actual->storage_error(), "; ",
                     newest < 0 ? "there is no older one"
                                : absl::StrCat("the last good one is of step ", newest, ": ",
                                               job.committed().rbegin()->directory())));
    AddFailures(job, {RankFailedEvent(job, -1, node_id, failure, last_call_)}, events);
    return;
  }
}

absl::Duration FailureDetector::StorageFailsFor(const std::string& job_id) const {
  const auto it = storage_.find(job_id);
  return it == storage_.end() ? absl::ZeroDuration() : awake_ - it->second.since;
}

const agent::ActualJob* FailureDetector::LastReport(const std::string& node_id,
                                                    const std::string& job_id) const {
  const auto it = nodes_.find(node_id);
  if (it == nodes_.end()) return nullptr;
  for (const auto& job : it->second.report.jobs()) {
    if (job.job_id() == job_id) return &job;
  }
  return nullptr;
}

absl::Duration FailureDetector::SilenceOf(const std::string& node_id) const {
  const auto it = nodes_.find(node_id);
  return it == nodes_.end() ? awake_ : awake_ - it->second.heard;
}

}  // namespace megascale::driver
