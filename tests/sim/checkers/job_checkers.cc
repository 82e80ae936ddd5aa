#include "tests/sim/checkers/job_checkers.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace megascale::sim {

using driver::FindJob;
using driver::IsTerminal;
using driver::JobId;

// --- TerminalNeverChanges ---------------------------------------------------------------------

void TerminalChecker::OnState(const DriverState& before, const DriverState& after) {
  for (const JobRecord& job : after.jobs()) {
    const auto known = ended_.find(JobId(job));
    if (known != ended_.end() && known->second != job.SerializeAsString()) {
      world_.Violate("TerminalNeverChanges",
                     absl::StrCat("job ", JobId(job), " had ended, and is now ",
                                  control::JobState_Name(job.state()), ": ", job.message()));
    }
    if (known == ended_.end() && IsTerminal(job)) ended_[JobId(job)] = job.SerializeAsString();
  }
}

// --- AcknowledgedIsKept -----------------------------------------------------------------------

void AcknowledgedChecker::OnState(const DriverState& before, const DriverState& after) {
  constexpr char kName[] = "AcknowledgedIsKept";
  for (const JobRecord& job : after.jobs()) {
    if (IsTerminal(job)) ended_.insert(JobId(job));
  }
  for (const std::string& job_id : submitted_) {
    if (FindJob(after, job_id) != nullptr) continue;
    if (world_.forgets_jobs && ended_.count(job_id) > 0) continue;
    world_.Violate(kName,
                   absl::StrCat("job ", job_id, ": its submit was acknowledged and is lost"));
  }
  for (const std::string& job_id : cancelled_) {
    const JobRecord* job = FindJob(after, job_id);
    if (job == nullptr) continue;
    const bool cancelled = job->state() == control::JOB_STATE_CANCELLED;
    if (job->has_cancel() && (!IsTerminal(*job) || cancelled)) continue;
    world_.Violate(kName, absl::StrCat("job ", job_id, ": its cancel was acknowledged, and it is ",
                                       control::JobState_Name(job->state())));
  }
}

// --- RestartsEnd ------------------------------------------------------------------------------

namespace {

// The product gives up after 20, and each machine may refuse a job once.
constexpr int64_t kMachinesMax = 40;

}  // namespace

void RestartChecker::OnStepCompleted(const ProcessName& process, int64_t step) {
  Job& job = jobs_[process.job_id];
  if (process.attempt == job.attempt) job.highest_step = std::max(job.highest_step, step);
  job.completed = std::max(job.completed, step);
}

void RestartChecker::OnState(const DriverState& before, const DriverState& after) {
  for (const JobRecord& record : after.jobs()) {
    Job& job = jobs_[JobId(record)];
    if (record.attempt() < job.attempt) {
      world_.Violate("RestartsEnd", absl::StrCat("job ", JobId(record), ": attempt ",
                                                 record.attempt(), " after attempt ", job.attempt));
    }
    if (record.attempt() <= job.attempt) continue;
    const JobRecord* old = FindJob(before, JobId(record));
    if (job.attempt > 0 && old != nullptr) CountEnded(record, *old, &job);
    job.attempt = record.attempt();
    job.known_step = record.best_step();
    job.highest_step = 0;
    job.could_not_read = false;
    if (job.without_progress <= record.submitted().spec().fault().max_restarts_without_progress() &&
        job.without_reading <= ReadsMax(record) && job.by_machines <= kMachinesMax) {
      continue;
    }
    world_.Violate("RestartsEnd",
                   absl::StrCat("job ", JobId(record), ": attempt ", job.attempt, " follows ",
                                job.without_progress, " that completed no new step, and ",
                                job.without_reading, " that could not read their checkpoint, and ",
                                job.by_machines, " that machines ended"));
  }
}

void RestartChecker::CountEnded(const JobRecord& record, const JobRecord& old, Job* job) {
  const int64_t known = std::min(record.best_step(), job->completed);
  const bool progressed = std::max(job->highest_step, known) > job->known_step;
  // Leaving a node is not a failure; failed reads, lost machines and machines that refuse the job
  // are counted separately.
  const auto failure_class = record.culprit().failure_class();
  const bool is_of_machine = failure_class == megascale::telemetry::v1::FAILURE_CLASS_UNREACHABLE ||
                             failure_class == megascale::telemetry::v1::FAILURE_CLASS_LINK ||
                             failure_class == megascale::telemetry::v1::FAILURE_CLASS_REFUSED;
  const int counts = old.has_leave() || job->could_not_read || is_of_machine ? 0 : 1;
  job->by_machines = progressed ? 0 : job->by_machines + (is_of_machine ? 1 : 0);
  job->without_progress = progressed ? 0 : job->without_progress + counts;
  job->without_reading = job->could_not_read ? job->without_reading + 1 : 0;
}

// Some of these attempts may have ended for another reason, and count as others do.
int64_t RestartChecker::ReadsMax(const JobRecord& record) {
  return 3 * (record.submitted().spec().checkpoint().keep() + 1) +
         record.submitted().spec().fault().max_restarts_without_progress();
}

void RestartChecker::OnReadRefused(const ProcessName& process) {
  Job& job = jobs_[process.job_id];
  if (process.attempt == job.attempt) job.could_not_read = true;
}

// --- NeverBeginsAnew --------------------------------------------------------------------------

void InitialChecker::OnState(const DriverState& before, const DriverState& after) {
  for (const JobRecord& job : after.jobs()) {
    if (job.committed_size() > 0) committed_in_.try_emplace(JobId(job), job.attempt());
    if (!job.submitted().from_checkpoint().empty()) committed_in_.try_emplace(JobId(job), 0);
  }
}

void InitialChecker::OnLoaded(const ProcessName& process, int64_t step) {
  const auto committed = committed_in_.find(process.job_id);
  if (step > 0 || committed == committed_in_.end() || process.attempt <= committed->second) return;
  world_.Violate("NeverBeginsAnew",
                 absl::StrCat("job ", process.job_id, ": attempt ", process.attempt,
                              " begins at initial weights, though it has a checkpoint of attempt ",
                              committed->second));
}

// --- PairsBlameTheGuilty ----------------------------------------------------------------------

void BlameChecker::OnState(const DriverState& before, const DriverState& after) {
  had_bad_links_.insert(world_.bad_links.begin(), world_.bad_links.end());
  for (const auto& node : after.nodes()) {
    const std::string& node_id = node.hello().node_id();
    const auto* old = driver::FindNode(before, node_id);
    const bool is_new = node.has_quarantine() && (old == nullptr || !old->has_quarantine());
    if (!is_new || !absl::StartsWith(node.quarantine().evidence(), "machine test: exchanges")) {
      continue;
    }
    // A job may be there by now: this is why it leaves.
    world_.Break({node_id, Harm::kTest}, "is quarantined for its exchanges");
    // For all that anybody can know, a machine that several others do not reach is at fault.
    std::set<std::string> unreached;
    for (const auto& [link, until] : world_.cut_until) {
      if (link.first == node_id) unreached.insert(link.second);
      if (link.second == node_id) unreached.insert(link.first);
    }
    if (had_bad_links_.count(node_id) > 0 || unreached.size() > 1) continue;
    world_.Violate("PairsBlameTheGuilty",
                   absl::StrCat(node_id, ": ", node.quarantine().evidence()));
  }
}

// --- SuspectsAreLimited -----------------------------------------------------------------------

void SuspectChecker::CheckSuspicion(const JobRecord& job) {
  const control::Suspicion& suspicion = job.suspicion();
  if (!job.has_suspicion() || suspicion.rank() < 0) return;
  if (job.placements().empty()) return;  // it failed, and another job has its slots
  if (driver::NodeOfRank(job, suspicion.rank()) == suspicion.node_id()) return;
  world_.Violate("SuspectsAreLimited",
                 absl::StrCat("job ", JobId(job), " suspects node ", suspicion.node_id(),
                              ", which does not hold rank ", suspicion.rank()));
}

void SuspectChecker::OnState(const DriverState& before, const DriverState& after) {
  constexpr int64_t kHour = int64_t{3600} * 1'000'000'000;
  std::vector<int64_t> all;
  for (const JobRecord& job : after.jobs()) {
    CheckSuspicion(job);
    if (job.evictions().empty()) continue;
    all.insert(all.end(), job.evictions().begin(), job.evictions().end());
    const bool asks =
        job.submitted().spec().fault().on_suspect() == megascale::job::v1::ON_SUSPECT_EVICT;
    if (asks && job.evictions_size() <= 2) continue;
    world_.Violate("SuspectsAreLimited", absl::StrCat("job ", JobId(job), " evicted ",
                                                      job.evictions_size(), " suspects"));
  }
  std::sort(all.begin(), all.end());
  for (size_t i = 4; i < all.size(); ++i) {
    if (all[i] - all[i - 4] >= kHour) continue;
    world_.Violate("SuspectsAreLimited", "all jobs together evicted 5 suspects within an hour");
  }
}

// --- PoolsAreKept -----------------------------------------------------------------------------

namespace {

bool IsBarred(const driver::NodeRecord& node, bool is_first) {
  return node.evicted() || node.has_quarantine() || (is_first && node.spare());
}

// In one round a node may change before the attempt began or after. So only what holds before and
// after the round is judged. A drain ends with the start of the agent that drains.
bool WasBarred(const driver::NodeRecord& was, const driver::NodeRecord& is, bool is_first) {
  const bool drained =
      was.draining() && is.draining() && was.hello().incarnation() == is.hello().incarnation();
  return drained || (IsBarred(was, is_first) && IsBarred(is, is_first));
}

}  // namespace

void PoolChecker::OnState(const DriverState& before, const DriverState& after) {
  for (const JobRecord& job : after.jobs()) {
    const JobRecord* old = FindJob(before, JobId(job));
    if (old == nullptr || job.attempt() == old->attempt()) continue;
    // More than one attempt may begin in a round.
    const bool is_first =
        old->stage() == driver::v1::STAGE_QUEUED && job.attempt() == old->attempt() + 1;
    for (const std::string& node_id : driver::NodesOf(job)) {
      const driver::NodeRecord* was = driver::FindNode(before, node_id);
      const driver::NodeRecord* is = driver::FindNode(after, node_id);
      if (was == nullptr || is == nullptr) continue;
      if (!WasBarred(*was, *is, is_first)) continue;
      world_.Violate("PoolsAreKept", absl::StrCat("job ", JobId(job), ": attempt ", job.attempt(),
                                                  " has ranks on ", node_id, ", which takes none"));
    }
  }
}

// --- NumericsAgree ----------------------------------------------------------------------------

void NumericsChecker::OnState(const DriverState& before, const DriverState& after) {
  for (const JobRecord& job : after.jobs()) {
    const JobRecord* old = FindJob(before, JobId(job));
    if (old != nullptr && job.attempt() == old->attempt()) continue;
    for (const std::string& node_id : driver::NodesOf(job)) {
      const driver::NodeRecord* node = driver::FindNode(after, node_id);
      if (node == nullptr || !node->hello().numerics_version().empty()) continue;
      untold_[{JobId(job), job.attempt()}].insert(node_id);
    }
  }
}

void NumericsChecker::OnProcessStarted(const ProcessName& process) {
  const auto version = world_.numerics.find(process.incarnation);
  const Attempt attempt = {process.job_id, process.attempt};
  if (version == world_.numerics.end() || untold_[attempt].count(process.node_id) > 0) return;
  if (process.only_deletes) return;  // it computes nothing
  versions_[attempt].insert(version->second);
  if (versions_[attempt].size() < 2) return;
  world_.Violate("NumericsAgree",
                 absl::StrCat("job ", process.job_id, ": attempt ", process.attempt,
                              " has ranks of ", versions_[attempt].size(), " numerics versions"));
}

// --- DrainsEnd --------------------------------------------------------------------------------

void DrainChecker::OnDrainBegan(const std::string& node_id) {
  world_.timeline.After(kWithin, [this, node_id] {
    if (drained_.count(node_id) > 0) return;
    world_.Violate("DrainsEnd", absl::StrCat(node_id, " was asked to end ",
                                             absl::FormatDuration(kWithin), " ago and still runs"));
  });
}

void DrainChecker::OnState(const DriverState& before, const DriverState& after) {
  for (const JobRecord& job : after.jobs()) {
    const bool is_refused = job.submitted().spec().name() == "refused";
    if (!job.has_culprit() || is_refused) continue;
    world_.Violate("DrainsEnd", absl::StrCat("job ", JobId(job), " fails: ", job.message()));
  }
}

// --- TestsComeFirst ---------------------------------------------------------------------------

void TestedChecker::OnState(const DriverState& before, const DriverState& after) {
  if (!world_.old_driver) return;
  for (const auto& node : after.nodes()) untested_.insert(node.hello().incarnation());
}

void TestedChecker::OnTestStarted(const std::string& incarnation) {
  testing_.insert(incarnation);
  if (processes_[incarnation].empty()) return;
  world_.Violate("TestsComeFirst",
                 absl::StrCat(incarnation, ": its machine is tested beside ",
                              processes_[incarnation].size(), " processes of jobs"));
}

void TestedChecker::OnTestEnded(const std::string& incarnation, bool passed) {
  testing_.erase(incarnation);
  untested_.erase(incarnation);
  passed ? (void)passed_.insert(incarnation) : (void)passed_.erase(incarnation);
}

void TestedChecker::OnProcessStarted(const ProcessName& process) {
  processes_[process.incarnation].insert(process.process_id);
  if (world_.machine_tests == agent::TEST_KIND_UNSPECIFIED) return;
  if (world_.old_agents.count(process.node_id) > 0) return;
  const bool tested = world_.old_driver || passed_.count(process.incarnation) > 0 ||
                      untested_.count(process.incarnation) > 0;
  if (tested && testing_.count(process.incarnation) == 0) return;
  world_.Violate("TestsComeFirst",
                 absl::StrCat("job ", process.job_id, ": rank ", process.rank, " of attempt ",
                              process.attempt, " starts on ", process.incarnation,
                              tested ? ", while its machine is tested"
                                     : ", whose machine has not passed a test"));
}

void TestedChecker::OnProcessEnded(const ProcessName& process) {
  processes_[process.incarnation].erase(process.process_id);
}

// --- NobodyStarves ----------------------------------------------------------------------------

namespace {

// Groups of tensor-parallel ranks that the machines of a numerics version, and those that tell
// none, could run if no job had slots.
int64_t CapacityOf(const std::string& numerics, const DriverState& state, const JobRecord& job) {
  const int64_t tensor =
      std::max(1, job.submitted().spec().parallel().tensor_model_parallel_size());
  const std::set<std::string> refusing = driver::RefusingNodesOf(state, job);
  int64_t capacity = 0;
  for (const auto& node : state.nodes()) {
    const bool is_due = node.test().test().state() == agent::MachineTest::STATE_RUNNING;
    const bool is_kept = node.spare() && job.stage() == driver::v1::STAGE_QUEUED;
    if (!driver::TakesRanks(node) || is_due || is_kept) continue;
    if (refusing.count(node.hello().node_id()) > 0) continue;
    const std::string& version = node.hello().numerics_version();
    if (!version.empty() && version != numerics) continue;
    capacity += node.hello().num_slots() / tensor;
  }
  return capacity * tensor;
}

// The most that one numerics version has. A machine may be upgraded within the round.
int64_t Capacity(const DriverState& state, const JobRecord& job) {
  std::set<std::string> versions = {""};
  for (const auto& node : state.nodes()) versions.insert(node.hello().numerics_version());
  int64_t capacity = 0;
  for (const std::string& version : versions) {
    capacity = std::max(capacity, CapacityOf(version, state, job));
  }
  return capacity;
}

// Hours of waiting that a job has before one submitted at the same time.
int64_t Ahead(const JobRecord& job) { return job.submitted().spec().priority(); }

}  // namespace

void StarvationChecker::OnState(const DriverState& before, const DriverState& after) {
  for (const JobRecord& job : after.jobs()) {
    const JobRecord* old = FindJob(before, JobId(job));
    if (job.attempt() > 0 && old != nullptr && old->stage() == driver::v1::STAGE_QUEUED) {
      Check(before, after, job);
    }
  }
}

// A round may have several events, so only what holds before and after it is judged.
void StarvationChecker::Check(const DriverState& before, const DriverState& after,
                              const JobRecord& started) {
  bool is_earlier = true;
  for (const JobRecord& other : after.jobs()) {
    if (JobId(other) == JobId(started)) {
      is_earlier = false;
      continue;
    }
    const JobRecord* old = FindJob(before, JobId(other));
    if (old == nullptr || old->stage() != other.stage() || other.has_cancel()) continue;
    const bool queued =
        other.stage() == driver::v1::STAGE_QUEUED && is_earlier && Ahead(other) >= Ahead(started);
    const bool recovers = other.stage() == driver::v1::STAGE_WAIT_FOR_SLOTS;
    if (!queued && !recovers) continue;
    const int64_t needs = driver::WorldSize(other);
    // A queued job is never passed; it bars the way even if it needs more than there is.
    if (recovers && (Capacity(before, *old) < needs || Capacity(after, other) < needs)) continue;
    world_.Violate("NobodyStarves",
                   absl::StrCat("job ", JobId(started), " starts before job ", JobId(other),
                                recovers ? ", which recovers and would fit" : ", which is ahead"));
  }
}

// --- TimeAddsUp -------------------------------------------------------------------------------

namespace {

int64_t SumOfParts(const control::TimeAccount& account) {
  return account.kept_nanos() + account.queue_nanos() + account.start_nanos() +
         account.load_nanos() + account.checkpoint_nanos() + account.detection_nanos() +
         account.decision_nanos() + account.recomputation_nanos() + account.degraded_nanos() +
         account.evaluation_nanos();
}

// Time that was lost stays lost.
bool Shrinks(const control::TimeAccount& before, const control::TimeAccount& after) {
  return after.wall_nanos() < before.wall_nanos() || after.queue_nanos() < before.queue_nanos() ||
         after.start_nanos() < before.start_nanos() || after.load_nanos() < before.load_nanos() ||
         after.recomputation_nanos() < before.recomputation_nanos() ||
         after.decision_nanos() < before.decision_nanos() || after.kept_nanos() < 0;
}

}  // namespace

void TimeChecker::OnState(const DriverState& before, const DriverState& after) {
  for (const JobRecord& job : after.jobs()) Check(job);
}

void TimeChecker::Check(const JobRecord& job) {
  constexpr char kName[] = "TimeAddsUp";
  const auto& book = job.time_book();
  const control::TimeAccount& account = book.account();
  const int64_t wall = book.as_of_unix_nanos() - job.submitted_unix_nanos();
  if (SumOfParts(account) != wall || account.wall_nanos() != wall) {
    world_.Violate(kName, absl::StrCat("job ", JobId(job), ": ", wall, " ns are accounted for as ",
                                       SumOfParts(account), " and ", account.wall_nanos()));
  }
  // A clock that was set back meanwhile leaves the end before the newest time in the book.
  if (IsTerminal(job) && book.as_of_unix_nanos() < job.ended_unix_nanos()) {
    world_.Violate(
        kName, absl::StrCat("job ", JobId(job), ": its account ends at ", book.as_of_unix_nanos(),
                            ", and the job at ", job.ended_unix_nanos()));
  }
  control::TimeAccount& last = last_[JobId(job)];
  if (Shrinks(last, account)) {
    world_.Violate(
        kName, absl::StrCat("job ", JobId(job), ": its account went from ", last.ShortDebugString(),
                            " to ", account.ShortDebugString()));
  }
  last = account;
}

void TimeChecker::OnStatus(const control::Job& job, const DriverState& durable) {
  if (SumOfParts(job.time_account()) == job.time_account().wall_nanos() &&
      SumOfParts(job.last_hour()) == job.last_hour().wall_nanos()) {
    return;
  }
  world_.Violate("TimeAddsUp", absl::StrCat("job ", job.job_id(), " shows ",
                                            job.time_account().ShortDebugString()));
}

// --- ClaimsAreBounded, NamesStay --------------------------------------------------------------

void StrangerChecker::OnState(const DriverState& before, const DriverState& after) {
  int64_t num_made_up = 0;
  for (const auto& node : after.nodes()) {
    const std::string& node_id = node.hello().node_id();
    const bool is_made_up = absl::StartsWith(node_id, kMadeUpNode);
    num_made_up += is_made_up ? 1 : 0;
    if (node.hello().num_slots() > kSlotsOfAgentMax) {
      world_.Violate("ClaimsAreBounded",
                     absl::StrCat(node_id, " offers ", node.hello().num_slots(), " slots"));
    }
    const auto* was = driver::FindNode(before, node_id);
    const bool was_free = was == nullptr || was->evicted() || was->hello().key() == kLiarsKey;
    if (node.hello().key() == kLiarsKey && !is_made_up && !was_free) {
      world_.Violate("NamesStay", absl::StrCat("the liar holds the node id ", node_id));
    }
  }
  // Each driver counts anew.
  if (num_made_up > kNewNodesPerHour * world_.num_driver_starts) {
    world_.Violate("ClaimsAreBounded", absl::StrCat("the liar has made ", num_made_up, " nodes"));
  }
}

// --- DurationsAreReal -------------------------------------------------------------------------

void DurationChecker::OnState(const DriverState& before, const DriverState& after) {
  for (const JobRecord& job : after.jobs()) {
    if (known_.insert(JobId(job)).second) submitted_[JobId(job)] = world_.timeline.now();
  }
}

void DurationChecker::OnFault(const Fault& fault) {
  if (fault.harm == Harm::kDriver) submitted_.clear();
}

void DurationChecker::OnStatus(const control::Job& job, const DriverState& durable) {
  const auto submitted = submitted_.find(job.job_id());
  if (submitted == submitted_.end() || job.has_ended_at()) return;
  const absl::Duration real = world_.timeline.now() - submitted->second;
  const absl::Duration counted = absl::Nanoseconds(job.time_account().wall_nanos());
  if (absl::AbsDuration(counted - real) <= kErrorMax) return;
  world_.Violate("DurationsAreReal",
                 absl::StrCat("job ", job.job_id(), " has existed for ", absl::FormatDuration(real),
                              ", and its account has ", absl::FormatDuration(counted)));
}

// --- RunsOrEnds -------------------------------------------------------------------------------

void LivenessChecker::OnState(const DriverState& before, const DriverState& after) {
  durable_ = after;
  if (!healed_) return;
  for (const JobRecord& job : after.jobs()) {
    if (job.state() == control::JOB_STATE_RUNNING) ran_.insert(JobId(job));
  }
}

void LivenessChecker::OnHealed() {
  healed_ = true;
  OnState(durable_, DriverState(durable_));
  world_.timeline.After(kRunningWithin, [this] { CheckAll(); });
}

void LivenessChecker::CheckAll() {
  for (const JobRecord& job : durable_.jobs()) {
    if (IsTerminal(job) || ran_.count(JobId(job)) > 0) continue;
    world_.Violate("RunsOrEnds",
                   absl::StrCat("job ", JobId(job), " is neither RUNNING nor ended ",
                                absl::FormatDuration(kRunningWithin),
                                " after the last fault: ", control::JobState_Name(job.state()),
                                ", ", job.reason(), ": ", job.message()));
  }
}

void StorageChecker::OnState(const DriverState& before, const DriverState& after) {
  for (const JobRecord& job : after.jobs()) {
    const JobRecord* old = driver::FindJob(before, driver::JobId(job));
    if (old == nullptr || driver::IsTerminal(*old) || !driver::IsTerminal(job)) continue;
    // The message of a cancelled job says why checkpoints may be left.
    const bool limit_passed =
        job.reason() == "StorageFailed" || job.state() == control::JOB_STATE_CANCELLED;
    if (!job.has_data() || limit_passed || !absl::StrContains(job.message(), "is not mounted")) {
      continue;
    }
    world_.Violate("StorageComesBack",
                   absl::StrCat("job ", driver::JobId(job), " has ended: ", job.message()));
  }
}

}  // namespace megascale::sim
