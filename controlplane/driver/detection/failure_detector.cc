#include "controlplane/driver/detection/failure_detector.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/detection/reported_events.h"
#include "runtime/job/deadlines.h"
#include "runtime/job/job_spec.h"
#include "runtime/plan/instruction.h"
#include "runtime/telemetry/doing.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;

// A rank that waits for peers is suspected so much later than others. After a restart or a stall of
// the driver the time of each rank counts from its agent's first report, and the report about the
// rank that the others wait for may come last.
constexpr absl::Duration kWaitersLast = absl::Seconds(3);

absl::Duration HeartbeatTimeout(const JobRecord& job) {
  return job::ToDuration(job.submitted().spec().fault().heartbeat_timeout());
}

bool IsStarting(telemetry::Phase phase) {
  return phase == telemetry::PHASE_UNSPECIFIED || phase == telemetry::PHASE_STARTING ||
         phase == telemetry::PHASE_LOADING || phase == telemetry::PHASE_FIRST_STEP;
}

// How long a rank of a job may make no progress.
class ProgressLimits {
 public:
  explicit ProgressLimits(const JobRecord& job)
      : deadlines_(job::DeadlinesOf(job.submitted().spec().fault())) {}

  // A phase of a newer agent may belong to the start or to training: it has the longer limit.
  absl::Duration Of(telemetry::Phase phase) const {
    const bool may_start = !telemetry::Phase_IsValid(phase) || IsStarting(phase);
    return may_start ? deadlines_.start : deadlines_.progress;
  }

 private:
  job::Deadlines deadlines_;
};

Event HungEvent(const JobRecord& job, int rank, const std::string& node_id,
                const std::string& evidence, const AgentReports& reports) {
  agent::RankFailure failure;
  failure.set_failure_class(telemetry::FAILURE_CLASS_HUNG);
  failure.set_message(evidence);
  return RankFailedEvent(job, rank, node_id, failure, reports);
}

// The limit of a phase counts from the phase's begin. A rank without any report has been silent for
// as long as its attempt runs.
absl::Duration StillFor(const telemetry::RankStatus& status, absl::Duration silence,
                        absl::Duration in_phase) {
  if (status.progress_age_seconds() < 0) return in_phase;
  return std::min(absl::Seconds(status.progress_age_seconds()) + silence, in_phase);
}

// On its own line, because one-line views show only the first.
std::string Recent(const telemetry::RankStatus& status) {
  return status.recent().empty() ? std::string() : absl::StrCat("\n", status.recent());
}

std::string Doing(const telemetry::RankStatus& status) {
  const std::string words = megascale::telemetry::DescribeDoing(status);
  return words.empty() ? "no instruction" : words;
}

}  // namespace

absl::Duration FailureDetector::Since(std::map<std::string, Watched>* watched,
                                      const std::string& key, int64_t value,
                                      const AgentReports& reports) {
  auto [it, added] = watched->try_emplace(key, Watched{value, reports.awake()});
  if (!added && it->second.value != value) it->second = Watched{value, reports.awake()};
  return reports.awake() - it->second.since;
}

void FailureDetector::OnReport(const std::string& job_id) {
  const auto looks = looks_.find(job_id);
  if (looks != looks_.end()) looks->second.calm_until = -absl::InfiniteDuration();
}

void FailureDetector::Forget(const std::string& job_id) {
  stages_.erase(job_id);
  phases_.erase(job_id);
  looks_.erase(job_id);
  storage_.erase(job_id);
}

std::vector<Event> FailureDetector::LostNodes(const DriverState& state,
                                              const AgentReports& reports) {
  std::vector<Event> events;
  if (reports.awake() <= none_lost_until_) return events;
  none_lost_until_ = reports.awake() + reports.node_timeout();
  for (const NodeRecord& node : state.nodes()) {
    const std::string& node_id = node.hello().node_id();
    const absl::Duration silence = reports.SilenceOf(node_id);
    if (!node.alive()) continue;
    const absl::Duration left = std::max(absl::ZeroDuration(), reports.node_timeout() - silence);
    none_lost_until_ = std::min(none_lost_until_, reports.awake() + left);
    if (silence <= reports.node_timeout()) continue;
    Event event;
    auto* lost = event.mutable_node_lost();
    lost->set_node_id(node_id);
    lost->set_incarnation(node.hello().incarnation());
    lost->set_why(absl::StrCat("no heartbeat for ", absl::FormatDuration(reports.node_timeout())));
    *lost->mutable_noticed_at() = reports.NoticedAt(silence);
    events.push_back(std::move(event));
  }
  return events;
}

std::vector<Event> FailureDetector::FailuresOf(const JobRecord& job, const AgentReports& reports) {
  std::vector<Event> events;
  const auto add = [&](std::optional<Event> failed) {
    if (failed.has_value()) events.push_back(*std::move(failed));
  };
  Looks& looks = looks_[JobId(job)];
  const bool is_known = looks.attempt == job.attempt() && looks.stage_event == job.stage_event();
  if (is_known && reports.awake() <= looks.calm_until) return {};
  LookAt(job, reports, &looks);
  const bool runs = job.stage() == pb::STAGE_RUN;
  if (runs) add(StorageFailed(job, reports, looks.nodes));
  // A job that leaves a node waits for all of its ranks, too.
  if (runs || job.stage() == pb::STAGE_LEAVE) add(Hung(job, reports, &looks.nodes));
  if (runs || job.stage() == pb::STAGE_PREFLIGHT) add(Overdue(job, reports, looks.nodes));
  looks.stage_event = job.stage_event();
  looks.calm_until =
      runs && events.empty() ? CalmUntil(job, looks, reports.awake()) : -absl::InfiniteDuration();
  return events;
}

absl::Duration FailureDetector::CalmUntil(const JobRecord& job, const Looks& looks,
                                          absl::Duration awake) const {
  constexpr absl::Duration kNotCalm = -absl::InfiniteDuration();
  if (storage_.count(JobId(job)) > 0) return kNotCalm;
  const absl::Duration start_ends =
      stages_.at(JobId(job)).since + job::DeadlinesOf(job.submitted().spec().fault()).start;
  absl::Duration until = awake <= start_ends ? start_ends : absl::InfiniteDuration();
  for (const Look& look : looks.nodes) {
    if (look.job == nullptr) return kNotCalm;
    until = std::min(until, look.calm_until);
  }
  return until;
}

std::optional<FailureDetector::Suspect> FailureDetector::SuspectOf(
    const telemetry::RankStatus& status, bool is_alive, absl::Duration still,
    absl::Duration limit) {
  Suspect suspect;
  suspect.rank = status.rank();
  suspect.waiting = plan::NeedsPeers(plan::InstructionId::FromPacked(status.instruction()));
  if (!is_alive) {
    const absl::Duration alive_age = absl::Seconds(status.alive_age_seconds());
    suspect.dead = true;
    suspect.age = alive_age;
    suspect.evidence =
        absl::StrCat("its timer thread has not run for ",
                     absl::FormatDuration(absl::Seconds(absl::ToInt64Seconds(alive_age))),
                     " (process ", status.pid(), ", in ", Doing(status), ")", Recent(status));
    return suspect;
  }
  suspect.age = still;
  if (suspect.age <= limit + (suspect.waiting ? kWaitersLast : absl::ZeroDuration())) {
    return std::nullopt;
  }
  // While ranks read a checkpoint for others, a rank that waits makes no progress of its own for as
  // long as that takes. Each rank that reads has its own limit.
  if (suspect.waiting && status.phase() == telemetry::PHASE_LOADING) return std::nullopt;
  suspect.evidence = absl::StrCat("no progress for ", absl::FormatDuration(limit), " at step ",
                                  status.step(), " in ", Doing(status), Recent(status));
  return suspect;
}

void FailureDetector::LookAt(const JobRecord& job, const AgentReports& reports, Looks* looks) {
  const std::vector<std::string>& nodes = reports.Nodes(job);
  const std::vector<const AgentReports::Agent*>& agents = reports.AgentsOf(job);
  if (looks->attempt != job.attempt() || looks->nodes.size() != nodes.size()) {
    looks->attempt = job.attempt();
    looks->nodes.assign(nodes.size(), {});
    for (size_t i = 0; i < nodes.size(); ++i) looks->nodes[i].node_id = nodes[i];
  }
  static const std::shared_ptr<const agent::ActualState> kNoReport;
  // Thousands of ranks are looked at ten times a second; a node reports once a second.
  for (size_t i = 0; i < nodes.size(); ++i) {
    Look& look = looks->nodes[i];
    const AgentReports::Agent* known = agents[i];
    const auto& report = known == nullptr ? kNoReport : known->report;
    if (look.report != report) {
      look.job = report == nullptr ? nullptr : reports.ReportOfAttempt(nodes[i], job);
      look.calm_until = absl::ZeroDuration();
      look.report = report;
    }
    if (report == nullptr) continue;
    look.heard = known->heard;
    look.punctual = known->punctual;
  }
}

std::vector<FailureDetector::Suspect> FailureDetector::SuspectsOf(const JobRecord& job,
                                                                  absl::Duration awake,
                                                                  std::vector<Look>* looks,
                                                                  bool* is_cause_ahead) {
  std::vector<Suspect> suspects;
  std::vector<Watched>& phases = phases_[JobId(job)];
  phases.resize(static_cast<size_t>(job.placements_size()));
  for (Look& look : *looks) {
    if (look.job == nullptr || awake <= look.calm_until) continue;
    AddSuspects(job, awake, &phases, &look, &suspects, is_cause_ahead);
  }
  return suspects;
}

void FailureDetector::AddSuspects(const JobRecord& job, absl::Duration awake,
                                  std::vector<Watched>* phases, Look* look,
                                  std::vector<Suspect>* suspects, bool* is_cause_ahead) {
  const absl::Duration heartbeat_timeout = HeartbeatTimeout(job);
  const ProgressLimits limits(job);
  const absl::Duration silence = awake - look->heard;
  look->calm_until = absl::InfiniteDuration();
  for (const auto& rank : look->job->ranks()) {
    if (rank.state() != agent::ActualRank::STATE_RUNNING) continue;
    const telemetry::RankStatus& status = rank.status();
    if (NodeOfRank(job, status.rank()) != look->node_id) continue;
    Watched& watched = (*phases)[static_cast<size_t>(status.rank())];
    const int64_t value = job.attempt() * 64 + status.phase();
    if (watched.value != value) watched = Watched{value, awake};
    const absl::Duration still = StillFor(status, silence, awake - watched.since);
    const bool is_alive = absl::Seconds(status.alive_age_seconds()) <= heartbeat_timeout;
    const absl::Duration limit = limits.Of(status.phase());
    if (is_alive && still <= limit) {
      // It has stood still for long, but in a phase that this driver has not seen for so long.
      const bool is_long = absl::Seconds(status.progress_age_seconds()) > limit;
      *is_cause_ahead |=
          is_long && !plan::NeedsPeers(plan::InstructionId::FromPacked(status.instruction()));
      // What is still grows with the time.
      look->calm_until = std::min(look->calm_until, is_long ? awake : awake + limit - still);
      continue;
    }
    look->calm_until = awake;
    std::optional<Suspect> suspect = SuspectOf(status, is_alive, still, limit);
    // The report of an agent that stalled itself says nothing about its ranks.
    if (!suspect.has_value() || !look->punctual) continue;
    suspect->node_id = look->node_id;
    suspects->push_back(*std::move(suspect));
  }
}

std::optional<Event> FailureDetector::Hung(const JobRecord& job, const AgentReports& reports,
                                           std::vector<Look>* looks) {
  bool is_cause_ahead = false;
  const std::vector<Suspect> suspects = SuspectsOf(job, reports.awake(), looks, &is_cause_ahead);
  if (suspects.empty()) return std::nullopt;
  const Suspect& worst =
      *std::max_element(suspects.begin(), suspects.end(), [](const Suspect& a, const Suspect& b) {
        return std::tuple(a.dead, !a.waiting, a.age, -a.rank) <
               std::tuple(b.dead, !b.waiting, b.age, -b.rank);
      });
  if (worst.waiting && !worst.dead && is_cause_ahead) return std::nullopt;
  return HungEvent(job, worst.rank, worst.node_id, worst.evidence, reports);
}

std::optional<Event> FailureDetector::Overdue(const JobRecord& job, const AgentReports& reports,
                                              const std::vector<Look>& looks) {
  const absl::Duration limit = job::DeadlinesOf(job.submitted().spec().fault()).start;
  int64_t stage = job.stage_event();
  if (job.stage() == pb::STAGE_PREFLIGHT) {  // it may go on with something that takes long
    for (const Look& look : looks) stage += look.job ? look.job->preflight().progress() : 0;
  }
  if (Since(&stages_, JobId(job), stage, reports) <= limit) return std::nullopt;
  if (job.stage() == pb::STAGE_PREFLIGHT) {
    for (const Look& look : looks) {
      const agent::Hello* agent = reports.FindHello(look.node_id);
      if (agent != nullptr && HasPreflight(job, *agent)) continue;
      const std::string evidence =
          absl::StrCat("its preflight did not end within ", absl::FormatDuration(limit));
      return HungEvent(job, -1, look.node_id, evidence, reports);
    }
    return std::nullopt;
  }
  std::set<int> there;
  for (const Look& look : looks) {
    if (look.job == nullptr) continue;
    for (const auto& rank : look.job->ranks()) there.insert(rank.status().rank());
  }
  for (const auto& placement : job.placements()) {
    if (there.count(placement.rank()) > 0) continue;
    if (FindEnded(job, placement.rank()) != nullptr) continue;
    const std::string evidence =
        absl::StrCat("was not started within ", absl::FormatDuration(limit));
    return HungEvent(job, placement.rank(), placement.node_id(), evidence, reports);
  }
  return std::nullopt;
}

// Training goes on meanwhile. Only a commit ends the failure; one rank's stored shard proves
// little.
std::optional<Event> FailureDetector::StorageFailed(const JobRecord& job,
                                                    const AgentReports& reports,
                                                    const std::vector<Look>& looks) {
  const int64_t newest = NewestCommittedStep(job);
  const auto known = storage_.find(JobId(job));
  if (known != storage_.end() && known->second.value != newest) storage_.erase(known);
  for (const Look& look : looks) {
    if (look.job == nullptr || look.job->storage_error().empty()) continue;
    const absl::Duration limit =
        job::ToDuration(job.submitted().spec().fault().checkpoint_timeout());
    // Unset in a log that was written before this limit existed.
    const bool limited = limit > absl::ZeroDuration();
    const bool exceeded = Since(&storage_, JobId(job), newest, reports) > limit;
    if (!exceeded || !limited || job.host_failed()) return std::nullopt;
    agent::RankFailure failure;
    failure.set_failure_class(telemetry::FAILURE_CLASS_STORAGE);
    failure.set_message(
        absl::StrCat("no checkpoint could be written for ", absl::FormatDuration(limit),
                     " (fault.checkpoint_timeout): ", look.job->storage_error(), "; ",
                     newest < 0 ? "there is no older one"
                                : absl::StrCat("the last good one is of step ", newest, ": ",
                                               job.committed().rbegin()->directory())));
    return RankFailedEvent(job, -1, look.node_id, failure, reports);
  }
  return std::nullopt;
}

std::map<std::string, absl::Duration> FailureDetector::StorageFailures() const {
  std::map<std::string, absl::Duration> since;
  for (const auto& [job_id, watched] : storage_) since[job_id] = watched.since;
  return since;
}

}  // namespace megascale::driver
