#include "controlplane/driver/detection/reported_events.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "controlplane/driver/core/placement.h"
#include "controlplane/driver/exchanges/exchanges.h"
#include "runtime/base/repeated.h"
#include "runtime/base/text/printable.h"
#include "runtime/job/data_digest.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;

// How many machines a job leaves because their storage is away, although it has run there before.
constexpr size_t kMovesForStorageMax = 2;

bool RanOn(const JobRecord& job, const std::string& node_id) {
  return std::any_of(job.preflights().begin(), job.preflights().end(),
                     [&](const auto& passed) { return passed.node_id() == node_id; });
}

// Returns NodeFenced if the node has reconciled a desired state without processes of the job, and
// has none left.
std::optional<Event> FencedEvent(const JobRecord& job, const NodeRecord& node,
                                 const agent::ActualState& report, const agent::ActualJob& actual,
                                 const JobIndex& index) {
  const bool wants_none = StopsAtStep(job) || job.stage() == pb::STAGE_FENCE ||
                          job.stage() == pb::STAGE_BACKOFF ||
                          job.stage() == pb::STAGE_WAIT_FOR_SLOTS;
  if (!wants_none || report.applied_version() < VersionOfEvent(job.stage_event()) ||
      actual.num_processes() > 0 || index.HasFenced(job, node.hello().node_id())) {
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

// Only the host of rank 0 writes manifests, in the job's checkpoint directory.
void AddManifests(const JobRecord& job, const std::string& node_id, const agent::ActualJob& report,
                  std::vector<Event>* events) {
  if (NodeOfRank(job, 0) != node_id) return;
  for (const auto& manifest : report.manifests()) {
    if (manifest.attempt() != job.attempt() || !job.has_restore()) continue;
    if (!absl::StartsWith(manifest.directory(), absl::StrCat(CheckpointDirectory(job), "/"))) {
      continue;
    }
    if (IsCommitted(job, manifest.attempt(), manifest.step())) continue;
    // A manifest older than a commit may be deleted by now: commits permit that.
    if (manifest.step() < NewestCommittedStep(job)) continue;
    Event event;
    event.mutable_manifest_written()->set_job_id(JobId(job));
    *event.mutable_manifest_written()->mutable_manifest() = manifest;
    events->push_back(std::move(event));
  }
}

// An agent's texts stay in the log, in snapshots and in answers, and agents are not trusted: they
// are cut and made printable first.
constexpr size_t kFailureBytesMax = 8 << 10;  // with the last lines of a log
constexpr size_t kPreflightBytesMax = 1 << 10;
constexpr int kWarningsMax = 16;
constexpr int64_t kAttemptMax = 1'000'000'000'000;  // what others left is never that long
constexpr double kAgeSecondsMax = 24 * 3600;

// Returns the text with its lines, each printable.
std::string PrintableLines(absl::string_view text, size_t bytes_max) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(text.substr(0, bytes_max), '\n')) {
    lines.push_back(base::Printable(line));
  }
  return absl::StrCat(absl::StrJoin(lines, "\n"), text.size() > bytes_max ? "…" : "");
}

agent::Preflight CheckedPreflight(const agent::Preflight& reported) {
  agent::Preflight preflight = reported;
  preflight.DiscardUnknownFields();
  preflight.set_message(base::Printable(reported.message(), kPreflightBytesMax));
  preflight.set_newest_attempt(std::clamp<int64_t>(reported.newest_attempt(), 0, kAttemptMax));
  base::KeepNewest(kWarningsMax, preflight.mutable_warnings());
  for (std::string& warning : *preflight.mutable_warnings()) {
    warning = base::Printable(warning, kPreflightBytesMax);
  }
  return preflight;
}

// Returns whether the job's record still lacks the list of its files, which agents of older
// versions need. Only they send it.
bool NeedsFiles(const JobRecord& job) {
  return job.data().file_sha256().empty() &&
         std::all_of(job.preflights().begin(), job.preflights().end(), [](const auto& preflight) {
           return preflight.preflight().data().file_sha256().empty();
         });
}

void AddPreflight(const JobRecord& job, const NodeRecord& node, const agent::Preflight& preflight,
                  std::vector<Event>* events) {
  const std::string& node_id = node.hello().node_id();
  Event event;
  if (preflight.state() == agent::Preflight::STATE_PASSED && !HasPreflight(job, node.hello())) {
    auto* passed = event.mutable_preflight_passed();
    passed->set_job_id(JobId(job));
    passed->set_attempt(job.attempt());
    passed->set_node_id(node_id);
    *passed->mutable_preflight() = CheckedPreflight(preflight);
    if (preflight.has_data() && (node.hello().data_digests() || !NeedsFiles(job))) {
      auto* data = passed->mutable_preflight()->mutable_data();  // checked, as all of it
      *data = job::DigestOf(*data);
    }
  } else if (preflight.state() == agent::Preflight::STATE_REFUSED) {
    auto* refused = event.mutable_preflight_refused();
    refused->set_job_id(JobId(job));
    refused->set_attempt(job.attempt());
    refused->set_node_id(node_id);
    refused->set_message(CheckedPreflight(preflight).message());
  } else {
    return;
  }
  events->push_back(std::move(event));
}

// Returns the failure, with its age now: the report may be a repeated one.
agent::RankFailure WithAgeOf(const std::string& node_id, agent::RankFailure failure,
                             const AgentReports& reports) {
  const double age = absl::ToDoubleSeconds(reports.AgeOf(node_id));
  failure.set_age_seconds(failure.age_seconds() + age);
  return failure;
}

// Returns the ends and failures of ranks, and the failure of the host, in the order of the report.
std::vector<Event> EndsOf(const JobRecord& job, const std::string& node_id,
                          const agent::ActualJob& report, const AgentReports& reports,
                          const JobIndex& index) {
  std::vector<Event> ends;
  const bool runs = job.stage() == pb::STAGE_RUN || StopsAtStep(job);
  const bool may_fail =
      runs || job.stage() == pb::STAGE_FENCE || job.stage() == pb::STAGE_PREFLIGHT;
  for (const auto& rank : report.ranks()) {
    const int number = rank.status().rank();
    const bool stopped = rank.state() == agent::ActualRank::STATE_STOPPED;
    const bool failed = rank.state() == agent::ActualRank::STATE_FAILED;
    const bool finished = rank.state() == agent::ActualRank::STATE_FINISHED;
    if (!stopped && !failed && !finished) continue;
    if (NodeOfRank(job, number) != node_id || index.HasEnded(job, number)) continue;
    if (failed && may_fail) {
      ends.push_back(RankFailedEvent(job, number, node_id,
                                     WithAgeOf(node_id, rank.failure(), reports), reports));
    } else if (!failed && runs) {
      Event event;
      auto* ended = event.mutable_rank_ended();
      ended->set_job_id(JobId(job));
      ended->set_attempt(job.attempt());
      ended->set_rank(number);
      ended->set_stopped(stopped);
      ended->set_step(rank.status().step());
      ends.push_back(std::move(event));
    }
  }
  if (report.host().has_failure() && !job.host_failed() && may_fail) {
    ends.push_back(RankFailedEvent(job, -1, node_id,
                                   WithAgeOf(node_id, report.host().failure(), reports), reports));
  }
  return ends;
}

// Returns the phase that all ranks on the node have reached; STARTING: one of them has not reached
// `wanted`.
telemetry::Phase PhaseOn(const std::string& node_id, const JobRecord& job, telemetry::Phase wanted,
                         const AgentReports& reports) {
  const agent::ActualJob* actual = reports.ReportOfAttempt(node_id, job);
  if (actual == nullptr) return telemetry::PHASE_STARTING;
  telemetry::Phase slowest = telemetry::PHASE_FINISHED;
  std::set<int> reached;
  for (const auto& rank : actual->ranks()) {
    if (NodeOfRank(job, rank.status().rank()) != node_id) continue;
    // What a newer agent's phase stands for is not known: it reaches nothing.
    const telemetry::Phase phase = rank.status().phase();
    if (phase < wanted || !telemetry::Phase_IsValid(phase)) return telemetry::PHASE_STARTING;
    slowest = std::min(slowest, phase);
    reached.insert(rank.status().rank());
  }
  const bool all = static_cast<int>(reached.size()) == reports.NumRanksOn(job, node_id);
  return all ? slowest : telemetry::PHASE_STARTING;
}

// Returns whether `is_done` holds of all nodes of the job. Every report may be the last missing
// one, and agents often report in the order of their ids: a search begins at the node that ended
// the last one, and takes the nodes before it last.
template <typename IsDone>
bool AreAllDone(const JobRecord& job, const AgentReports& reports, std::string* laggard,
                const IsDone& is_done) {
  const std::vector<std::string>& nodes = reports.Nodes(job);
  const auto begin = std::lower_bound(nodes.begin(), nodes.end(), *laggard);
  auto behind = std::find_if_not(begin, nodes.end(), is_done);
  if (behind == nodes.end()) {
    behind = std::find_if_not(nodes.begin(), begin, is_done);
    if (behind == begin) return !nodes.empty();
  }
  *laggard = *behind;
  return false;
}

// Returns the phase that every rank has reached; STARTING: one has not reached `wanted`.
telemetry::Phase PhaseOfAll(const JobRecord& job, telemetry::Phase wanted,
                            const AgentReports& reports, std::string* laggard) {
  telemetry::Phase slowest = telemetry::PHASE_FINISHED;
  const bool all = AreAllDone(job, reports, laggard, [&](const std::string& node_id) {
    slowest = std::min(slowest, PhaseOn(node_id, job, wanted, reports));
    return slowest != telemetry::PHASE_STARTING;
  });
  return all ? slowest : telemetry::PHASE_STARTING;
}

// Requires: the job is starting.
void AddBeginnings(const JobRecord& job, const AgentReports& reports, std::string* laggard,
                   std::vector<Event>* events) {
  const bool loads = job.time_book().phase() != pb::TimeBook::PHASE_START;
  const telemetry::Phase wanted = loads ? telemetry::PHASE_FIRST_STEP : telemetry::PHASE_LOADING;
  const telemetry::Phase phase = PhaseOfAll(job, wanted, reports, laggard);
  Event event;
  if (!loads && phase == telemetry::PHASE_LOADING) {
    event.mutable_loading_started()->set_job_id(JobId(job));
    event.mutable_loading_started()->set_attempt(job.attempt());
    events->push_back(std::move(event));
    return;
  }
  if (phase < telemetry::PHASE_FIRST_STEP) return;
  event.mutable_training_started()->set_job_id(JobId(job));
  event.mutable_training_started()->set_attempt(job.attempt());
  events->push_back(std::move(event));
}

// Returns whether the node has reported that the shards of `step` of all ranks on it are stored.
bool AreStoredOn(const std::string& node_id, const JobRecord& job, int64_t step,
                 const AgentReports& reports) {
  const agent::ActualJob* actual = reports.LastReport(node_id, JobId(job));
  if (actual == nullptr) return false;
  std::set<int> ranks;
  for (const auto& shard : actual->shards()) {
    if (shard.attempt() != job.attempt() || shard.step() != step) continue;
    if (NodeOfRank(job, shard.rank()) == node_id) ranks.insert(shard.rank());
  }
  return static_cast<int>(ranks.size()) == reports.NumRanksOn(job, node_id);
}

// Checkpoints that are stored at the same time; an agent that names more steps is not worth memory.
constexpr size_t kStepsMax = 16;

// Appends ShardsStored for those steps in `report` of which every rank's shard is stored.
void AddStoredShards(const JobRecord& job, const agent::ActualJob& report,
                     const AgentReports& reports, std::map<int64_t, std::string>* laggards,
                     std::vector<Event>* events) {
  if (job.stage() != pb::STAGE_RUN && !StopsAtStep(job)) return;
  laggards->erase(laggards->begin(), laggards->lower_bound(NewestCommittedStep(job)));
  std::set<int64_t> steps;
  for (const auto& shard : report.shards()) {
    if (shard.attempt() == job.attempt()) steps.insert(shard.step());
  }
  for (const int64_t step : steps) {
    const auto& finalize = job.finalize();
    if (std::find(finalize.begin(), finalize.end(), step) != finalize.end()) continue;
    if (IsCommitted(job, job.attempt(), step)) continue;
    if (step < NewestCommittedStep(job)) continue;
    if (laggards->size() > kStepsMax) laggards->clear();
    const bool all = AreAllDone(job, reports, &(*laggards)[step], [&](const std::string& node_id) {
      return AreStoredOn(node_id, job, step, reports);
    });
    if (!all) continue;
    Event event;
    auto* stored = event.mutable_shards_stored();
    stored->set_job_id(JobId(job));
    stored->set_attempt(job.attempt());
    stored->set_step(step);
    events->push_back(std::move(event));
  }
}

constexpr int kTestResultsMax = 16;
constexpr size_t kTestTextBytesMax = 300;

// Returns what is logged of a test's result. It stays in the log, in snapshots and in answers, and
// agents are not trusted: only checked fields of bounded size are taken.
agent::MachineTest CheckedTest(const agent::MachineTest& reported, agent::TestKind asked) {
  agent::MachineTest test;
  test.set_id(reported.id());
  test.set_kind(asked);
  test.set_state(reported.state());
  test.set_evidence(base::Printable(reported.evidence(), kTestTextBytesMax));
  for (int i = 0; i < std::min(kTestResultsMax, reported.results_size()); ++i) {
    const agent::TestResult& result = reported.results(i);
    agent::TestResult* taken = test.add_results();
    taken->set_part(base::Printable(result.part(), kTestTextBytesMax));
    taken->set_seconds(result.seconds());
    taken->set_bytes_per_second(result.bytes_per_second());
    taken->set_latency_seconds(result.latency_seconds());
    taken->set_failure(base::Printable(result.failure(), kTestTextBytesMax));
    taken->set_note(base::Printable(result.note(), kTestTextBytesMax));
  }
  return test;
}

// Members of an exchange wait for each other for up to 20 s. If the driver stood still when they
// were to begin, one may have given up before another began, so their links are not to blame.
constexpr absl::Duration kBeganApart = absl::Seconds(30);

void ExcuseMissingPeers(const agent::MachineTest& reported, agent::MachineTest* taken) {
  for (int i = 0; i < taken->results_size(); ++i) {
    if (!reported.results(i).peer_missing()) continue;
    agent::TestResult* result = taken->mutable_results(i);
    result->set_note(
        absl::StrCat("the driver stood still when it was to begin: ", result->failure()));
    result->clear_failure();
  }
}

// Adds the end of the machine's test, or of its part of an exchange.
void AddMachineTested(const DriverState& state, const NodeRecord& node,
                      const agent::ActualState& report, const AgentReports& reports,
                      std::vector<Event>* events) {
  const agent::MachineTest& test = report.machine_test();
  const bool has_ended = test.state() == agent::MachineTest::STATE_PASSED ||
                         test.state() == agent::MachineTest::STATE_FAILED;
  if (!has_ended) return;
  Event event;
  if (const pb::Exchange* exchange = FindExchange(state, node);
      exchange != nullptr && exchange->id() == test.id()) {
    const auto& members = exchange->members();
    if (std::any_of(members.begin(), members.end(), [&](const auto& member) {
          return member.node_id() == node.hello().node_id() && member.has_test();
        })) {
      return;
    }
    event.mutable_exchange_tested()->set_node_id(node.hello().node_id());
    event.mutable_exchange_tested()->set_incarnation(report.incarnation());
    agent::MachineTest* taken = event.mutable_exchange_tested()->mutable_test();
    *taken = CheckedTest(test, exchange->kind());
    if (reports.StalledWithin(kBeganApart)) ExcuseMissingPeers(test, taken);
    events->push_back(std::move(event));
    return;
  }
  if (!IsTestDue(node) || test.id() != node.test().test().id()) return;
  event.mutable_machine_tested()->set_node_id(node.hello().node_id());
  event.mutable_machine_tested()->set_incarnation(report.incarnation());
  *event.mutable_machine_tested()->mutable_test() = CheckedTest(test, node.test().test().kind());
  events->push_back(std::move(event));
}

// Returns EpochFenced if the agent has taken this epoch's desired state and has no process left of
// any job that must be fenced everywhere. Otherwise each job is fenced by itself.
std::optional<Event> EpochFencedEvent(const IndexedState& indexed, const NodeRecord& node,
                                      const agent::ActualState& report,
                                      const AgentReports& reports) {
  const DriverState& state = indexed.state();
  if (state.rules() < 6 || node.fenced_epoch() == state.epoch()) return std::nullopt;
  int64_t since = -1;
  for (const int place : indexed.index().restored()) {
    const JobRecord& job = state.jobs(place);
    if (!IsFencedEverywhere(state, job)) continue;
    since = std::max(since, job.stage_event());
    const agent::ActualJob* actual = reports.LastReport(node.hello().node_id(), JobId(job));
    if (actual != nullptr && actual->num_processes() > 0) return std::nullopt;
  }
  if (since < 0 || report.epoch() != state.epoch() ||
      report.applied_version() < VersionOfEvent(since)) {
    return std::nullopt;
  }
  Event event;
  event.mutable_epoch_fenced()->set_node_id(node.hello().node_id());
  event.mutable_epoch_fenced()->set_incarnation(report.incarnation());
  event.mutable_epoch_fenced()->set_epoch(state.epoch());
  return event;
}

void AddBusy(const NodeRecord& node, const agent::ActualState& report, std::vector<Event>* events) {
  if (node.busy() == report.test_hangs()) return;
  Event event;
  event.mutable_node_busy()->set_node_id(node.hello().node_id());
  event.mutable_node_busy()->set_incarnation(report.incarnation());
  event.mutable_node_busy()->set_busy(report.test_hangs());
  events->push_back(std::move(event));
}

}  // namespace

Event RankFailedEvent(const JobRecord& job, int rank, const std::string& node_id,
                      const agent::RankFailure& failure, const AgentReports& reports) {
  Event event;
  auto* failed = event.mutable_rank_failed();
  failed->set_job_id(JobId(job));
  failed->set_attempt(job.attempt());
  failed->set_rank(rank);
  failed->set_node_id(node_id);
  *failed->mutable_failure() = failure;
  failed->mutable_failure()->DiscardUnknownFields();
  failed->mutable_failure()->set_message(PrintableLines(failure.message(), kFailureBytesMax));
  failed->mutable_failure()->clear_age_seconds();
  // The comparison also makes no number zero.
  const double age = failure.age_seconds() > 0 ? failure.age_seconds() : 0;
  *failed->mutable_noticed_at() = reports.NoticedAt(absl::Seconds(std::min(age, kAgeSecondsMax)));
  return event;
}

std::vector<Event> ReportedEvents::EventsOfJob(const JobRecord& job, const NodeRecord& node,
                                               const agent::ActualJob& report,
                                               const AgentReports& reports,
                                               const JobIndex& index) const {
  const std::string& node_id = node.hello().node_id();
  std::vector<Event> events;
  if (job.stage() == pb::STAGE_PREFLIGHT) {
    AddPreflight(job, node, report.preflight(), &events);
  } else if (job.stage() == pb::STAGE_RUN) {
    if (job.state() == control::JOB_STATE_STARTING) {
      AddBeginnings(job, reports, &laggards_[JobId(job)].begins, &events);
    }
    if (!job.progressed()) AddProgress(job, &events);
  } else if (job.stage() == pb::STAGE_LEAVE ||
             (job.stage() == pb::STAGE_FENCE && !job.has_leave() && !job.has_cancel())) {
    // In the first no failure will tell the steps that it still makes. In the second they may come
    // after the failure, from another agent.
    AddProgress(job, &events);
  }
  AddManifests(job, node_id, report, &events);
  if (!report.shards().empty()) {
    AddStoredShards(job, report, reports, &laggards_[JobId(job)].stores, &events);
  }
  std::vector<Event> ends = EndsOf(job, node_id, report, reports, index);
  const auto failures = std::stable_partition(
      ends.begin(), ends.end(), [](const Event& event) { return !event.has_rank_failed(); });
  std::move(ends.begin(), failures, std::back_inserter(events));
  if (failures != ends.end()) AddProgress(job, &events);
  std::move(failures, ends.end(), std::back_inserter(events));
  return events;
}

std::vector<Event> ReportedEvents::EventsOf(const IndexedState& indexed, const NodeRecord& node,
                                            const agent::ActualState& report,
                                            const AgentReports& reports) const {
  const DriverState& state = indexed.state();
  const std::string& node_id = node.hello().node_id();
  std::vector<Event> events;
  if (report.draining() && !node.draining()) {
    Event event;
    event.mutable_node_draining()->set_node_id(node_id);
    event.mutable_node_draining()->set_incarnation(report.incarnation());
    events.push_back(std::move(event));
  }
  AddMachineTested(state, node, report, reports, &events);
  AddBusy(node, report, &events);
  std::optional<Event> epoch_fenced = EpochFencedEvent(indexed, node, report, reports);
  const bool all_fenced = epoch_fenced.has_value() || HasFencedEpoch(state, node);
  if (epoch_fenced.has_value()) events.push_back(*std::move(epoch_fenced));
  JobIndex::Places places = indexed.index().On(node_id);
  const JobIndex::Places& restored = indexed.index().restored();
  places.insert(restored.begin(), restored.end());
  for (const int place : places) {
    const JobRecord& job = state.jobs(place);
    if (!HoldsSlots(job)) continue;
    const bool everywhere = IsFencedEverywhere(state, job);
    if (everywhere ? all_fenced : !reports.IsOn(job, node_id)) continue;
    const agent::ActualJob* found = reports.LastReport(node_id, JobId(job));
    const agent::ActualJob nothing;
    const agent::ActualJob& actual = found != nullptr ? *found : nothing;
    if (actual.attempt() == job.attempt()) {
      std::vector<Event> more = EventsOfJob(job, node, actual, reports, indexed.index());
      std::move(more.begin(), more.end(), std::back_inserter(events));
    }
    if (auto fenced = FencedEvent(job, node, report, actual, indexed.index()))
      events.push_back(*std::move(fenced));
  }
  return events;
}

void ReportedEvents::AddProgress(const JobRecord& job, std::vector<Event>* events) const {
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

void ReportedEvents::AddStorageAway(const DriverState& state, const JobRecord& job,
                                    const AgentReports& reports, std::vector<Event>* events) const {
  if (job.stage() != pb::STAGE_PREFLIGHT || !job.has_restore()) return;
  std::set<std::string> away;
  std::string why;
  for (const std::string& node_id : NodesOf(job)) {
    const agent::ActualJob* actual = reports.ReportOfAttempt(node_id, job);
    if (actual == nullptr || actual->storage_error().empty()) continue;
    if (away.empty()) why = actual->storage_error();
    away.insert(node_id);
  }
  if (away.empty() || !HasRoomWithout(state, job, away)) return;
  // Where the job never ran, storage may be missing for good.
  const auto is_new = std::find_if(
      away.begin(), away.end(), [&](const std::string& node_id) { return !RanOn(job, node_id); });
  if (is_new == away.end() && RefusingNodesOf(state, job).size() >= kMovesForStorageMax) return;
  Event event;
  auto* refused = event.mutable_preflight_refused();
  refused->set_job_id(JobId(job));
  refused->set_attempt(job.attempt());
  refused->set_node_id(is_new == away.end() ? *away.begin() : *is_new);
  refused->set_message(why);
  refused->set_storage_away(true);
  events->push_back(std::move(event));
}

void ReportedEvents::AddRetentionEnded(const DriverState& state, const JobRecord& job,
                                       const AgentReports& reports,
                                       std::vector<Event>* events) const {
  if (!WaitsForRetention(state, job) || WritesManifest(job)) return;
  const bool retains = job.stage() == pb::STAGE_RETAIN;
  const agent::ActualJob* actual =
      reports.ReportOfAttempt(retains ? RetainingNodeOf(state, job) : NodeOfRank(job, 0), job);
  const auto& newest = *job.committed().rbegin();
  if (actual == nullptr || actual->retained().attempt() != newest.attempt() ||
      actual->retained().step() != newest.step()) {
    return;
  }
  Event event;
  auto* ended = event.mutable_retention_ended();
  ended->set_job_id(JobId(job));
  ended->set_attempt(job.attempt());
  ended->set_step(newest.step());
  ended->set_error(base::Printable(actual->storage_error(), kPreflightBytesMax));
  events->push_back(std::move(event));
}

}  // namespace megascale::driver
