#include "controlplane/driver/core/driver_state.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "controlplane/driver/core/job_index.h"
#include "controlplane/driver/core/recovery.h"
#include "runtime/base/checksum.h"
#include "runtime/job/job_spec.h"

namespace megascale::driver {
namespace {

namespace pb = megascale::driver::v1;

// Time after the grace of a cancel in which agents kill the remaining processes and, if a
// checkpoint was requested, store it.
constexpr absl::Duration kStopMargin = absl::Seconds(10);
constexpr absl::Duration kStopCheckpointMargin = absl::Seconds(120);
// Deleting checkpoints delays a job's end for at most this long.
constexpr absl::Duration kRetentionTimeout = absl::Seconds(30);
// How many progress timeouts storage may take for the last checkpoint: as long as a worker waits
// for it.
constexpr int kStoragePatience = 10;

// How much longer than its process may run an agent has to tell the result of an exchange.
constexpr absl::Duration kExchangeMargin = absl::Seconds(30);

// What one step of priority is worth in the queue: an hour of waiting.
constexpr int64_t kNanosOfPriority = 3600 * int64_t{1'000'000'000};

// Makes a timer for the present stage of a job.
Timer StageTimer(const JobRecord& job, absl::string_view what, absl::Duration delay) {
  Timer timer;
  timer.key = absl::StrCat(what, "/", JobId(job), "/", job.attempt(), "/", job.stage());
  timer.delay = delay;
  auto* timed_out = timer.when_due.mutable_stage_timed_out();
  timed_out->set_job_id(JobId(job));
  timed_out->set_attempt(job.attempt());
  timed_out->set_stage(job.stage());
  return timer;
}

}  // namespace

const JobRecord* FindJob(const DriverState& state, absl::string_view job_id) {
  for (const JobRecord& job : state.jobs()) {
    if (JobId(job) == job_id) return &job;
  }
  return nullptr;
}

JobRecord* FindJob(DriverState* state, absl::string_view job_id) {
  return const_cast<JobRecord*>(FindJob(*state, job_id));
}

NodeRecord* AddNode(DriverState* state, absl::string_view node_id) {
  auto* nodes = state->mutable_nodes();
  nodes->Add();
  int index = nodes->size() - 1;
  for (; index > 0 && node_id < nodes->Get(index - 1).hello().node_id(); --index) {
    nodes->SwapElements(index - 1, index);
  }
  return nodes->Mutable(index);
}

bool TakesRanks(const NodeRecord& node) {
  return node.alive() && !node.evicted() && !node.draining() && !node.has_quarantine() &&
         !node.busy() && !node.unnamed();
}

absl::Duration TestDeadline(megascale::agent::v1::TestKind kind) {
  return kind == megascale::agent::v1::TEST_KIND_FULL ? absl::Minutes(3) : absl::Minutes(1);
}

bool IsTestDue(const NodeRecord& node) {
  return node.alive() && !node.draining() && !node.has_quarantine() &&
         node.test().test().state() == megascale::agent::v1::MachineTest::STATE_RUNNING;
}

std::set<std::string> BusyNodes(const DriverState& state) {
  std::set<std::string> busy;
  for (const JobRecord& job : state.jobs()) {
    if (!HoldsSlots(job) || IsHold(job.stage())) continue;
    std::set<absl::string_view> fenced;
    for (const auto& entry : job.fenced()) fenced.insert(entry.node_id());
    // After a rank's good end the host may still store its checkpoint.
    std::set<int> failed;
    for (const auto& ended : job.ended()) {
      if (ended.failed()) failed.insert(ended.rank());
    }
    for (const auto& placement : job.placements()) {
      if (fenced.count(placement.node_id()) > 0 || failed.count(placement.rank()) > 0) continue;
      busy.insert(placement.node_id());
    }
  }
  return busy;
}

int WorldSize(const JobRecord& job) { return job::WorldSize(job.submitted().spec()); }

int64_t QueueKey(const DriverState& state, const JobRecord& job, int64_t submitted) {
  const int priority = state.rules() < 5 ? 0 : job.submitted().spec().priority();
  return submitted - priority * kNanosOfPriority;
}

std::vector<const JobRecord*> Queue(const IndexedState& indexed) {
  const DriverState& state = indexed.state();
  std::vector<std::pair<int64_t, const JobRecord*>> queue;
  for (const int place : indexed.index().waiting()) {
    const JobRecord& job = state.jobs(place);
    if (job.stage() != pb::STAGE_QUEUED) continue;
    queue.emplace_back(QueueKey(state, job, indexed.index().SubmittedBy(place)), &job);
  }
  std::stable_sort(queue.begin(), queue.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<const JobRecord*> jobs;
  for (const auto& [key, job] : queue) jobs.push_back(job);
  return jobs;
}

bool IsTerminal(const JobRecord& job) { return job.stage() == pb::STAGE_ENDED; }

bool IsHold(pb::Stage stage) {
  return stage == pb::STAGE_FENCE || stage == pb::STAGE_BACKOFF ||
         stage == pb::STAGE_WAIT_FOR_SLOTS;
}

bool HoldsSlots(const JobRecord& job) {
  return job.stage() != pb::STAGE_QUEUED && job.stage() != pb::STAGE_ENDED;
}

bool StopsAtStep(const JobRecord& job) {
  return job.stage() == pb::STAGE_STOP || job.stage() == pb::STAGE_LEAVE;
}

int64_t NewestCommittedStep(const JobRecord& job) {
  return job.committed().empty() ? -1 : job.committed().rbegin()->step();
}

std::vector<std::string> NodesOf(const JobRecord& job) {
  std::vector<std::string> nodes;
  for (const auto& placement : job.placements()) {
    // Ranks of one node are usually consecutive.
    if (nodes.empty() || nodes.back() != placement.node_id()) nodes.push_back(placement.node_id());
  }
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

std::vector<std::string> LiveNodesOf(const DriverState& state, const JobRecord& job) {
  std::vector<std::string> live;
  for (const std::string& node_id : NodesOf(job)) {
    const NodeRecord* node = FindNode(state, node_id);
    if (node != nullptr && node->alive()) live.push_back(node_id);
  }
  return live;
}

bool IsOfStall(const megascale::control::v1::Suspicion& suspicion) {
  return suspicion.kind() != megascale::control::v1::Suspicion::KIND_DIFFERS &&
         suspicion.kind() != megascale::control::v1::Suspicion::KIND_SLOW;
}

bool Trains(const JobRecord& job) {
  return job.stage() == pb::STAGE_RUN && job.state() == megascale::control::v1::JOB_STATE_RUNNING &&
         job.ended_size() == 0;
}

bool HasStallSuspicion(const JobRecord& job) {
  return job.has_suspicion() && IsOfStall(job.suspicion());
}

std::string NodeOfRank(const JobRecord& job, int rank) {
  if (rank < 0 || rank >= job.placements_size()) return "";
  return job.placements(rank).node_id();
}

bool IsFenced(const JobRecord& job, absl::string_view node_id) {
  return std::any_of(job.fenced().begin(), job.fenced().end(),
                     [&](const auto& fenced) { return fenced.node_id() == node_id; });
}

bool HasLeft(const JobRecord& job, const NodeRecord& node) {
  return !TakesRanks(node) && IsHold(job.stage()) && IsFenced(job, node.hello().node_id());
}

namespace {

// An empty incarnation is that of an older driver's log: it fits every one.
bool IsOf(const pb::NodePreflight& preflight, const megascale::agent::v1::Hello& agent) {
  if (preflight.again()) return false;
  return preflight.incarnation().empty() || preflight.incarnation() == agent.incarnation();
}

}  // namespace

bool HasPreflight(const JobRecord& job, const megascale::agent::v1::Hello& agent) {
  return std::any_of(job.preflights().begin(), job.preflights().end(), [&](const auto& preflight) {
    return preflight.node_id() == agent.node_id() && IsOf(preflight, agent);
  });
}

// Asked after each preflight of a job that may have thousands: each rank and each preflight is
// looked at once.
bool HasAllPreflights(const DriverState& state, const JobRecord& job) {
  absl::flat_hash_map<absl::string_view, const pb::NodePreflight*> preflights;
  for (const auto& preflight : job.preflights()) preflights[preflight.node_id()] = &preflight;
  absl::string_view before;  // ranks of one node are usually consecutive
  return std::all_of(job.placements().begin(), job.placements().end(), [&](const auto& placement) {
    const absl::string_view node_id = placement.node_id();
    if (std::exchange(before, node_id) == node_id) return true;
    const auto found = preflights.find(node_id);
    const NodeRecord* node = found == preflights.end() ? nullptr : FindNode(state, node_id);
    return node != nullptr && IsOf(*found->second, node->hello());
  });
}

std::set<std::string> RefusingNodesOf(const DriverState& state, const JobRecord& job) {
  std::set<std::string> nodes;
  for (const auto& refusing : job.refusing()) {
    const NodeRecord* node = FindNode(state, refusing.node_id());
    if (node == nullptr || node->hello().incarnation() != refusing.incarnation()) continue;
    nodes.insert(refusing.node_id());
  }
  return nodes;
}

const pb::EndedRank* FindEnded(const JobRecord& job, int rank) {
  for (const auto& ended : job.ended()) {
    if (ended.rank() == rank) return &ended;
  }
  return nullptr;
}

void SetTime(int64_t unix_nanos, google::protobuf::Timestamp* timestamp) {
  timestamp->set_seconds(unix_nanos / 1'000'000'000);
  timestamp->set_nanos(static_cast<int32_t>(unix_nanos % 1'000'000'000));
}

bool IsFencedEverywhere(const DriverState& state, const JobRecord& job) {
  return state.rules() >= 5 && IsHold(job.stage()) && job.leave().reason() == kDriverRestored;
}

bool HasFencedEpoch(const DriverState& state, const NodeRecord& node) {
  return state.rules() >= 6 && node.fenced_epoch() == state.epoch();
}

std::vector<std::string> NodesToFence(const DriverState& state, const JobRecord& job) {
  if (!IsFencedEverywhere(state, job)) return LiveNodesOf(state, job);
  std::vector<std::string> nodes;
  for (const NodeRecord& node : state.nodes()) {
    if (node.alive() && !HasFencedEpoch(state, node)) nodes.push_back(node.hello().node_id());
  }
  return nodes;
}

std::vector<std::string> UnfencedNodesOf(const DriverState& state, const JobRecord& job) {
  std::set<absl::string_view> fenced;
  for (const auto& entry : job.fenced()) fenced.insert(entry.node_id());
  std::vector<std::string> nodes = NodesToFence(state, job);
  nodes.erase(std::remove_if(nodes.begin(), nodes.end(),
                             [&](const std::string& node_id) { return fenced.count(node_id) > 0; }),
              nodes.end());
  return nodes;
}

bool AllFenced(const DriverState& state, const JobRecord& job) {
  return UnfencedNodesOf(state, job).empty();
}

bool AllGone(const JobRecord& job) {
  std::set<int> ended;
  for (const auto& rank : job.ended()) ended.insert(rank.rank());
  return std::all_of(job.placements().begin(), job.placements().end(), [&](const auto& placement) {
    return ended.count(placement.rank()) > 0 || IsFenced(job, placement.node_id());
  });
}

bool HasAllSteps(const JobRecord& job) {
  return NewestCommittedStep(job) >= job.submitted().spec().train().steps();
}

bool WaitsForFinalCheckpoint(const JobRecord& job) {
  return job.stage() == pb::STAGE_RUN && job.ended_size() >= WorldSize(job) && !HasAllSteps(job);
}

int64_t StepBeingStored(const DriverState& state, const JobRecord& job) {
  if (job.host_failed() || AllFenced(state, job) || job.ended_size() < WorldSize(job)) return 0;
  int64_t step = 0;
  for (const auto& ended : job.ended()) {
    if (ended.failed()) return 0;
    step = std::max(step, ended.step());
  }
  return NewestCommittedStep(job) >= step ? 0 : step;
}

bool WritesManifest(const JobRecord& job) {
  return std::any_of(job.finalize().begin(), job.finalize().end(),
                     [&](int64_t step) { return step >= NewestCommittedStep(job); });
}

namespace {

// Whether all that a cancelled job stores is committed, apart from manifests that are being
// written.
bool HasStopped(const DriverState& state, const JobRecord& job) {
  if (job.stage() != pb::STAGE_STOP || job.committed().empty()) return false;
  if (state.rules() >= 10) {
    return AllGone(job) && (!job.cancel().checkpoint() || StepBeingStored(state, job) == 0);
  }
  int64_t last_step = 0;
  for (const auto& ended : job.ended()) {
    if (ended.failed()) return false;
    last_step = std::max(last_step, ended.step());
  }
  return job.cancel().checkpoint() && job.ended_size() >= WorldSize(job) &&
         NewestCommittedStep(job) >= last_step;
}

bool HasFinished(const JobRecord& job) {
  return job.stage() == pb::STAGE_RUN && job.ended_size() >= WorldSize(job) && HasAllSteps(job) &&
         std::none_of(job.ended().begin(), job.ended().end(),
                      [](const auto& ended) { return ended.failed(); });
}

}  // namespace

bool LeavesCheckpoints(const DriverState& state, const JobRecord& job) {
  const int keep = std::max(1, job.submitted().spec().checkpoint().keep());
  return state.rules() >= 10 && job.committed_size() >= keep &&
         job.retained_step() != NewestCommittedStep(job);
}

std::string RetainingNodeOf(const DriverState& state, const JobRecord& job) {
  std::vector<std::string> nodes = {NodeOfRank(job, 0)};
  const std::vector<std::string> all = NodesOf(job);
  nodes.insert(nodes.end(), all.begin(), all.end());
  for (const std::string& node_id : nodes) {
    const NodeRecord* node = FindNode(state, node_id);
    // An older agent does not know the order.
    if (node == nullptr || !TakesRanks(*node) || !node->hello().binds_address()) continue;
    // The agent that ran the attempt: another one may have to be tested first.
    if (IsFenced(job, node_id) && !IsTestDue(*node)) return node_id;
  }
  return "";
}

bool WaitsForRetention(const DriverState& state, const JobRecord& job) {
  if (job.stage() == pb::STAGE_RETAIN) return true;
  if (job.host_failed() || (!HasFinished(job) && !HasStopped(state, job))) return false;
  const std::string node_id = NodeOfRank(job, 0);
  const NodeRecord* node = FindNode(state, node_id);
  return node != nullptr && node->alive() && !IsFenced(job, node_id);
}

std::string LogId(const DriverState& state) {
  if (state.secret().empty()) return "";
  return base::Sha256Hex(absl::StrCat("identity/", state.secret())).substr(0, 32);
}

checkpoint::v1::Owner OwnerOf(const DriverState& state, const JobRecord& job) {
  checkpoint::v1::Owner owner;
  if (state.secret().empty()) return owner;
  owner.set_job_id(JobId(job));
  owner.set_log_id(LogId(state));
  owner.set_spec_sha256(job.submitted().spec_sha256());
  return owner;
}

std::string CheckpointDirectory(const JobRecord& job) {
  const std::string& given = job.submitted().spec().checkpoint().directory();
  if (given.empty()) return absl::StrCat(job.submitted().directory(), "/checkpoints");
  return absl::StrCat(given, "/", JobId(job));
}

namespace {

// The agent itself ends a test that takes too long. This is for an agent that cannot.
void AddTestTimers(const DriverState& state, std::vector<Timer>* timers) {
  if (std::none_of(state.nodes().begin(), state.nodes().end(), IsTestDue)) return;
  const std::set<std::string> busy = BusyNodes(state);
  for (const NodeRecord& node : state.nodes()) {
    const std::string& node_id = node.hello().node_id();
    if (!IsTestDue(node) || busy.count(node_id) > 0) continue;
    Timer timer;
    timer.key = absl::StrCat("test/", node_id, "/", node.test().test().id());
    timer.delay = kFenceTimeout + kTestStartsMax * TestDeadline(node.test().test().kind());
    auto* tested = timer.when_due.mutable_machine_tested();
    tested->set_node_id(node_id);
    tested->set_incarnation(node.hello().incarnation());
    *tested->mutable_test() = node.test().test();
    tested->mutable_test()->set_state(megascale::agent::v1::MachineTest::STATE_FAILED);
    tested->mutable_test()->set_evidence(
        absl::StrCat("its agent gave no result within ", absl::FormatDuration(timer.delay),
                     ": look there for processes that hang in storage or in a device"));
    timers->push_back(std::move(timer));
  }
}

// As above, for each part of an exchange.
void AddExchangeTimers(const DriverState& state, std::vector<Timer>* timers) {
  for (const pb::Exchange& exchange : state.exchanges()) {
    for (const pb::ExchangeMember& member : exchange.members()) {
      if (member.has_test()) continue;
      Timer timer;
      timer.key = absl::StrCat("exchange/", exchange.id(), "/", member.node_id());
      timer.delay = TestDeadline(exchange.kind()) + kExchangeMargin;
      auto* tested = timer.when_due.mutable_exchange_tested();
      tested->set_node_id(member.node_id());
      tested->set_incarnation(member.incarnation());
      tested->mutable_test()->set_id(exchange.id());
      tested->mutable_test()->set_kind(exchange.kind());
      tested->mutable_test()->set_state(megascale::agent::v1::MachineTest::STATE_FAILED);
      tested->mutable_test()->set_evidence(
          absl::StrCat("its agent gave no result within ", absl::FormatDuration(timer.delay)));
      timers->push_back(std::move(timer));
    }
  }
}

}  // namespace

std::vector<Timer> TimersFor(const IndexedState& indexed) {
  const DriverState& state = indexed.state();
  std::vector<Timer> timers;
  for (const int place : indexed.index().open()) {
    const JobRecord& job = state.jobs(place);
    Timer timer;
    const bool holds = job.stage() == pb::STAGE_FENCE || job.stage() == pb::STAGE_WAIT_FOR_SLOTS;
    if (job.stage() == pb::STAGE_BACKOFF) {
      timer.key = absl::StrCat("backoff/", JobId(job), "/", job.attempt());
      timer.delay = BackoffOf(job);
      timer.when_due.mutable_backoff_elapsed()->set_job_id(JobId(job));
      timer.when_due.mutable_backoff_elapsed()->set_attempt(job.attempt());
    } else if (WaitsForRetention(state, job)) {
      const int64_t step = NewestCommittedStep(job);
      timer.key = absl::StrCat("retention/", JobId(job), "/", job.attempt(), "/", step);
      timer.delay = kRetentionTimeout;
      timer.when_due.mutable_retention_ended()->set_job_id(JobId(job));
      timer.when_due.mutable_retention_ended()->set_attempt(job.attempt());
      timer.when_due.mutable_retention_ended()->set_step(step);
      timer.when_due.mutable_retention_ended()->set_timed_out(true);
    } else if (job.stage() == pb::STAGE_STOP) {
      timer = StageTimer(job, "stop",
                         job::ToDuration(job.cancel().grace()) +
                             (job.cancel().checkpoint() ? kStopCheckpointMargin : kStopMargin));
    } else if (job.stage() == pb::STAGE_LEAVE) {
      const auto& step_limit = job.submitted().spec().fault().progress_timeout();
      timer = StageTimer(job, "leave", job::ToDuration(step_limit) + kStopCheckpointMargin);
    } else if (WaitsForFinalCheckpoint(job)) {
      timer = StageTimer(
          job, "final",
          job::ToDuration(job.submitted().spec().fault().progress_timeout()) * kStoragePatience);
    } else if (holds && !indexed.index().AllFenced(state, job)) {
      timer = StageTimer(job, "fence", kFenceTimeout);
    } else {
      continue;
    }
    timers.push_back(std::move(timer));
  }
  AddTestTimers(state, &timers);
  AddExchangeTimers(state, &timers);
  return timers;
}

LossLogCut CutOf(const JobRecord& job) { return {JobId(job), job.restore().step(), job.attempt()}; }

std::vector<LossLogCut> LossLogCutsFor(const IndexedState& state) {
  std::vector<LossLogCut> cuts;
  for (const int place : state.index().open()) {
    const JobRecord& job = state.state().jobs(place);
    if (job.stage() != pb::STAGE_RUN || job.attempt() < 2) continue;
    cuts.push_back(CutOf(job));
  }
  return cuts;
}

}  // namespace megascale::driver
