#include "tests/sim/worker_process.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/comm/communicator.h"
#include "runtime/job/evaluation.h"
#include "runtime/job/job_spec.h"
#include "runtime/plan/instruction.h"

namespace megascale::sim {
namespace {

using Kind = actors::WorkerAction::Kind;

constexpr absl::Duration kStartMax = absl::Milliseconds(800);
constexpr absl::Duration kLoadMax = absl::Milliseconds(600);
constexpr absl::Duration kStepMin = absl::Milliseconds(80);
constexpr absl::Duration kStepMax = absl::Milliseconds(400);
constexpr absl::Duration kPeerLostMax = absl::Milliseconds(700);
constexpr absl::Duration kEvaluation = absl::Milliseconds(200);
constexpr absl::Duration kCopyMax = absl::Milliseconds(40);
constexpr absl::Duration kBufferPoll = absl::Milliseconds(100);
// How many progress timeouts a worker waits for storage, as runtime/engine does.
constexpr int kStoragePatience = 10;

// The errors of runtime/comm after a peer's end: in Fabric::Connect, and in a call.
absl::Status HungUp() { return absl::UnavailableError("a peer hung up while ranks connected"); }
absl::Status Gone() { return absl::AbortedError("a peer is gone"); }

std::string AddressOf(int rank) { return absl::StrCat("the address of rank ", rank); }

}  // namespace

double HeldOutLossAfter(int64_t step) {
  const double distance = static_cast<double>(step) - 25;
  return 1 + distance * distance / 1000;
}

// --- collective -------------------------------------------------------------------------------

Collective::Group& Collective::GroupOf(const WorkerProcess& worker) {
  return groups_[{worker.name().job_id, worker.name().attempt}];
}

void Collective::Break(const std::shared_ptr<WorkerProcess>& member, const absl::Status& why) {
  world_.timeline.After(world_.rng.Between(absl::Milliseconds(20), kPeerLostMax),
                        [this, member, why] {
                          Group& group = GroupOf(*member);
                          const auto entered = group.entered.find(member->name().rank);
                          if (entered == group.entered.end()) return;
                          const int64_t step = entered->second;
                          group.entered.erase(entered);
                          if (step < 0) {
                            member->OnJoined(why);
                          } else {
                            member->OnStepped(step, engine::StopFlag::kNone, why);
                          }
                        });
}

void Collective::Join(const std::shared_ptr<WorkerProcess>& worker) {
  Group& group = GroupOf(*worker);
  const int rank = worker->name().rank;
  group.members[rank] = worker;
  group.entered[rank] = -1;
  if (group.broken) return Break(worker, HungUp());
  world_.timeline.After(worker->deadlines().wait, [this, worker] {
    Group& now = GroupOf(*worker);
    const auto entered = now.entered.find(worker->name().rank);
    if (entered == now.entered.end() || entered->second >= 0) return;
    Break(worker, absl::DeadlineExceededError("a peer did not come"));
  });
  if (static_cast<int>(group.entered.size()) == worker->world_size()) Connect(worker);
}

void Collective::Connect(const std::shared_ptr<WorkerProcess>& any) {
  Group& group = GroupOf(*any);
  const auto members = group.members;
  bool is_cut = false;
  for (const auto& [rank, weak] : members) {
    if (weak.lock()->Unreached().empty()) continue;
    is_cut = true;
    world_.timeline.After(any->deadlines().connect, [this, weak] { EndConnecting(weak); });
  }
  if (is_cut) return;
  group.entered.clear();
  for (const auto& [rank, weak] : members) {
    world_.timeline.After(world_.rng.Between(absl::Milliseconds(1), absl::Milliseconds(50)),
                          [member = weak.lock()] { member->OnJoined(absl::OkStatus()); });
  }
}

void Collective::EndConnecting(const std::weak_ptr<WorkerProcess>& weak) {
  const std::shared_ptr<WorkerProcess> member = weak.lock();
  if (member == nullptr) return;
  Group& group = GroupOf(*member);
  const auto entered = group.entered.find(member->name().rank);
  if (entered == group.entered.end() || entered->second >= 0 || group.broken) return;
  const std::vector<int> unreached = member->Unreached();
  if (unreached.empty()) return Connect(member);
  Break(member, comm::BlameLinks(absl::DeadlineExceededError("no answer"), unreached));
}

void Collective::Enter(const std::shared_ptr<WorkerProcess>& worker, int64_t step) {
  Group& group = GroupOf(*worker);
  group.entered[worker->name().rank] = step;
  if (group.broken) return Break(worker, Gone());
  const auto num_ready = std::count_if(group.entered.begin(), group.entered.end(),
                                       [&](const auto& item) { return item.second == step; });
  if (num_ready < worker->world_size()) return;
  Exchange(worker, step);
}

void Collective::Exchange(const std::shared_ptr<WorkerProcess>& any, int64_t step) {
  Group& group = GroupOf(*any);
  const auto members = group.members;
  group.silent = false;
  for (const auto& [rank, weak] : members) {
    if (weak.lock()->Silent().empty()) continue;
    group.silent = true;
    world_.timeline.After(any->deadlines().join, [this, weak, step] { EndSilence(weak, step); });
  }
  if (group.silent) return;
  // All ranks are in this step, so a stop that was raised by now counts for all of them.
  const engine::StopFlag stop = group.stop;
  const absl::Duration duration = world_.rng.Between(kStepMin, kStepMax);
  for (const auto& [rank, weak] : members) weak.lock()->OnComputing();
  for (const auto& [rank, weak] : members) {
    const absl::Duration skew = world_.rng.Between(absl::ZeroDuration(), absl::Milliseconds(5));
    world_.timeline.After(duration + skew,
                          [this, member = weak, step, stop] { Finish(member, step, stop); });
  }
}

void Collective::EndSilence(const std::weak_ptr<WorkerProcess>& weak, int64_t step) {
  const std::shared_ptr<WorkerProcess> member = weak.lock();
  if (member == nullptr) return;
  Group& group = GroupOf(*member);
  const auto entered = group.entered.find(member->name().rank);
  if (entered == group.entered.end() || entered->second != step) return;
  if (group.broken || !group.silent) return;
  const std::vector<int> silent = member->Silent();
  if (silent.empty()) return Exchange(member, step);
  Break(member, comm::BlameLinks(absl::DeadlineExceededError("nothing is confirmed"), silent));
}

void Collective::Finish(const std::weak_ptr<WorkerProcess>& weak, int64_t step,
                        engine::StopFlag stop) {
  const std::shared_ptr<WorkerProcess> member = weak.lock();
  if (member == nullptr) return;
  Group& group = GroupOf(*member);
  const auto entered = group.entered.find(member->name().rank);
  if (entered == group.entered.end() || entered->second != step || group.HasHung()) return;
  group.entered.erase(entered);
  member->OnStepped(step, stop, absl::OkStatus());
}

bool Collective::Group::HasHung() const {
  return std::any_of(members.begin(), members.end(), [](const auto& member) {
    const std::shared_ptr<WorkerProcess> process = member.second.lock();
    return process != nullptr && process->alive() && !process->runs();
  });
}

bool Collective::IsWaiting(const WorkerProcess& worker) {
  const Group& group = GroupOf(worker);
  const auto entered = group.entered.find(worker.name().rank);
  if (entered == group.entered.end() || entered->second < 0) return false;
  if (group.silent) return true;
  const bool all_compute =
      std::all_of(group.entered.begin(), group.entered.end(),
                  [&](const auto& other) { return other.second == entered->second; });
  return !all_compute || static_cast<int>(group.entered.size()) < worker.world_size() ||
         group.HasHung();
}

void Collective::RaiseStop(const WorkerProcess& worker, engine::StopFlag flag) {
  Group& group = GroupOf(worker);
  group.stop = std::max(group.stop, flag);
}

void Collective::Leave(const WorkerProcess& worker) {
  Group& group = GroupOf(worker);
  const bool joined = group.members.erase(worker.name().rank) > 0;
  group.entered.erase(worker.name().rank);
  if (!joined) return;
  group.broken = true;
  for (const auto& [rank, weak] : group.members) {
    const std::shared_ptr<WorkerProcess> member = weak.lock();
    const auto entered = group.entered.find(rank);
    if (member == nullptr || entered == group.entered.end()) continue;
    Break(member, entered->second < 0 ? HungUp() : Gone());
  }
}

// --- one process ------------------------------------------------------------------------------

WorkerProcess::WorkerProcess(World* world, Collective* collective, CheckpointStorage* storage,
                             Options options)
    : world_(*world),
      collective_(*collective),
      storage_(*storage),
      options_(std::move(options)),
      core_({.attempt = options_.job.attempt(),
             .first_step = options_.job.restore().step(),
             .last_step = options_.job.spec().train().steps(),
             .checkpoint_interval = options_.job.spec().checkpoint().interval(),
             .is_evaluated =
                 [this](int64_t step) {
                   return options_.job.evaluates() && job::IsEvaluated(options_.job.spec(), step);
                 }}),
      progressed_at_(world_.timeline.now()) {}

void WorkerProcess::After(absl::Duration delay, std::function<void()> run) {
  world_.timeline.After(delay, [self = shared_from_this(), run = std::move(run)] {
    if (self->runs()) run();
  });
}

void WorkerProcess::Start() {
  After(world_.rng.Between(absl::Milliseconds(20), kStartMax), [this] { Perform(core_.Start()); });
}

void WorkerProcess::Stop(bool checkpoint) {
  if (runs()) Perform(core_.OnStopRequested(checkpoint));
}

void WorkerProcess::Hang(bool dead) {
  hangs_soon_ = !dead && collective_.IsWaiting(*this);
  if (hangs_soon_) return;
  hung_ = true;
  if (dead) dead_since_ = world_.timeline.now();
}

// What it waited for has come: that is progress.
void WorkerProcess::OnComputing() {
  if (!runs()) return;
  Progress();
  if (!hangs_soon_) return;
  hung_ = true;
  world_.Break({name().node_id, Harm::kProcess, name().job_id, name().rank}, "hangs now");
}

void WorkerProcess::Progress() {
  progressed_at_ = world_.timeline.now();
  world_.progressed[{name().node_id, name().job_id, name().attempt, name().rank}] = progressed_at_;
}

void WorkerProcess::Die() {
  if (!alive_) return;
  alive_ = false;
  world_.progressed.erase({name().node_id, name().job_id, name().attempt, name().rank});
  collective_.Leave(*this);
}

telemetry::RankStatus WorkerProcess::Heartbeat() const {
  telemetry::RankStatus status;
  status.set_rank(options_.name.rank);
  status.set_pid(options_.pid);
  status.set_phase(phase_);
  status.set_step(core_.step());
  const bool waits = !hung_ && collective_.IsWaiting(*this);
  if (phase_ == telemetry::PHASE_TRAINING || phase_ == telemetry::PHASE_FIRST_STEP) {
    const auto operation = waits ? plan::OpKind::kReduceNorm : plan::OpKind::kLoadBatch;
    status.set_activity(telemetry::ACTIVITY_INSTRUCTION);
    status.set_instruction(plan::InstructionId(operation).packed());
  }
  const absl::Duration now = world_.timeline.now();
  status.set_alive_age_seconds(dead_since_.has_value() ? absl::ToDoubleSeconds(now - *dead_since_)
                                                       : 0.1);
  status.set_progress_age_seconds(absl::ToDoubleSeconds(now - progressed_at_));
  return status;
}

void WorkerProcess::OnJoined(const absl::Status& status) {
  if (!runs()) return;
  Progress();
  Perform(core_.OnJoined(status));
}

void WorkerProcess::OnStepped(int64_t step, engine::StopFlag stop, const absl::Status& status) {
  if (!runs()) return;
  Progress();
  engine::StepResult result;
  result.stop = stop;
  result.record.set_step(step);
  result.record.set_loss(1.0 / static_cast<double>(step));
  result.record.set_tokens(100);
  result.record.set_seconds(0.2);
  if (!status.ok()) return Perform(core_.OnStepFinished(step, status));
  world_.Tell(&Observer::OnStepCompleted, options_.name, step);
  Perform(core_.OnStepFinished(step, result));
}

void WorkerProcess::Perform(const std::vector<actors::WorkerAction>& actions) {
  for (const actors::WorkerAction& action : actions) {
    if (runs()) Perform(action);
  }
}

void WorkerProcess::Perform(const actors::WorkerAction& action) {
  link::v1::FromWorker message;
  switch (action.kind) {
    case Kind::kJoinGroups:
      return Meet();
    case Kind::kLoadState:
      return After(world_.rng.Between(absl::Milliseconds(10), kLoadMax), [this] { Load(); });
    case Kind::kStartStep:
      return collective_.Enter(shared_from_this(), action.step);
    case Kind::kEvaluate:
      return After(kEvaluation, [this, step = action.step] {
        Progress();
        Perform(core_.OnEvaluated(step, HeldOutLossAfter(step)));
      });
    case Kind::kReportStep:
      *message.mutable_step() = action.record;
      return options_.report(message);
    case Kind::kTakeSnapshot:
      return TakeSnapshot(
          action.step,
          world_.timeline.now() +
              kStoragePatience * job::ToDuration(options_.job.spec().fault().progress_timeout()));
    case Kind::kReportSnapshot:
      message.mutable_sealed()->set_step(action.step);
      message.mutable_sealed()->set_buffer(action.buffer);
      return options_.report(message);
    case Kind::kRaiseStop:
      return collective_.RaiseStop(*this, action.stop);
    case Kind::kSetPhase:
      phase_ = action.phase;
      return Progress();
    case Kind::kReportWarning:
      message.set_warning(action.warning);
      return options_.report(message);
    case Kind::kReportFailure:
      *message.mutable_failure() = action.failure;
      options_.report(message);
      return options_.exit(1 << 8);
    case Kind::kFinish:
      message.mutable_finished()->set_step(action.step);
      message.mutable_finished()->set_stopped(action.stopped);
      options_.report(message);
      return options_.exit(0);
  }
}

// --- the store --------------------------------------------------------------------------------

void WorkerProcess::Ask(agent::StoreRequest request) {
  request.set_request_id(absl::StrCat("rank-", name().rank, "/",
                                      agent::StoreRequest::Operation_Name(request.operation())));
  request.set_job_id(name().job_id);
  request.set_attempt(name().attempt);
  num_awaited_[request.request_id()] = request.keys_size();
  link::v1::FromWorker message;
  *message.mutable_store() = std::move(request);
  options_.report(message);
}

std::vector<int> WorkerProcess::Silent() const {
  std::vector<int> ranks;
  for (const auto& placement : options_.job.placements()) {
    if (world_.IsCut(name().node_id, placement.node_id())) ranks.push_back(placement.rank());
  }
  return ranks;
}

std::vector<int> WorkerProcess::Unreached() const {
  std::vector<int> ranks = Silent();
  std::erase_if(ranks, [this](int rank) { return rank < name().rank; });
  return ranks;
}

// As runtime/comm/host/connect does.
void WorkerProcess::Meet() {
  agent::StoreRequest set;
  set.set_operation(agent::StoreRequest::OPERATION_SET);
  set.set_key(absl::StrCat("address/", name().rank));
  set.set_value(AddressOf(name().rank));
  Ask(set);
  agent::StoreRequest wait;
  wait.set_operation(agent::StoreRequest::OPERATION_WAIT);
  for (int rank = name().rank + 1; rank < world_size(); ++rank) {
    wait.add_keys(absl::StrCat("address/", rank));
  }
  if (!wait.keys().empty()) Ask(wait);
  After(deadlines().wait, [this] {
    if (num_awaited_.empty()) return;
    num_awaited_.clear();
    OnJoined(absl::DeadlineExceededError(kNotMet));
  });
}

void WorkerProcess::OnStoreReply(const agent::StoreReply& reply) {
  if (!runs()) return;
  const auto awaited = num_awaited_.extract(reply.request_id());
  if (awaited.empty()) return;  // it came twice, or too late
  if (reply.code() != 0) {
    num_awaited_.clear();
    return OnJoined(absl::Status(static_cast<absl::StatusCode>(reply.code()), reply.message()));
  }
  MEGASCALE_CHECK_MSG(reply.values_size() == awaited.mapped(), reply.request_id());
  for (int i = 0; i < reply.values_size(); ++i) {
    MEGASCALE_CHECK_MSG(reply.values(i) == AddressOf(name().rank + 1 + i), reply.request_id());
  }
  if (num_awaited_.empty()) collective_.Join(shared_from_this());
}

// --- state ------------------------------------------------------------------------------------

bool WorkerProcess::CannotRead(const std::string& node_id) const {
  const auto until = world_.reads_fail_until.find(node_id);
  return until != world_.reads_fail_until.end() && world_.timeline.now() < until->second &&
         options_.job.restore().source() == agent::RestorePoint::SOURCE_STORAGE;
}

bool WorkerProcess::NobodyReads() const {
  if (storage_.IsAway() && options_.job.restore().source() == agent::RestorePoint::SOURCE_STORAGE) {
    return true;
  }
  const auto& placements = options_.job.placements();
  return std::all_of(placements.begin(), placements.end(),
                     [this](const auto& placement) { return CannotRead(placement.node_id()); });
}

bool WorkerProcess::WasMemoryDamaged() const {
  return options_.job.restore().source() == agent::RestorePoint::SOURCE_MEMORY &&
         world_.damaged_memory.count(options_.name.incarnation) > 0;
}

absl::StatusOr<int64_t> WorkerProcess::ReadState() const {
  const agent::RestorePoint& restore = options_.job.restore();
  if (restore.source() == agent::RestorePoint::SOURCE_STORAGE) {
    if (NobodyReads()) return absl::DataLossError("input/output error");
    return storage_.ReadShard(restore, options_.name.rank);
  }
  if (restore.source() != agent::RestorePoint::SOURCE_MEMORY) return 0;
  ASSIGN_OR_RETURN(const auto reader, checkpoint::SnapshotReader::Open(options_.snapshots.get()));
  ASSIGN_OR_RETURN(const absl::string_view payload, reader.Read(restore.step()));
  int64_t step = 0;
  std::memcpy(&step, payload.data(), sizeof(step));
  return step;
}

void WorkerProcess::Load() {
  const absl::StatusOr<int64_t> step = ReadState();
  absl::Status status = step.status();
  if (status.ok() && *step != options_.job.restore().step()) {
    status = absl::DataLossError(absl::StrCat("is of step ", *step));
  }
  // Another machine of the job reads for one that cannot.
  const bool is_helped = status.ok() && CannotRead(options_.name.node_id);
  const std::string& directory = options_.job.restore().directory();
  if (!status.ok() && WasMemoryDamaged()) {
    world_.Break({options_.name.node_id, Harm::kReads}, "reads a damaged snapshot");
  } else if (!status.ok() && (NobodyReads() || storage_.IsDamaged(directory, name().rank) ||
                              storage_.IsTaken(name().job_id))) {
    world_.Break({options_.name.node_id, Harm::kReads}, absl::StrCat("cannot read ", directory));
    world_.Tell(&Observer::OnReadRefused, options_.name);
  } else if (!status.ok()) {
    world_.Tell(&Observer::OnRestoreFailed, options_.name, status);
  } else {
    auto writer =
        checkpoint::SnapshotWriter::Open(options_.snapshots.get(), options_.job.attempt(), *step);
    status = writer.status();
    if (writer.ok()) writer_ = *std::move(writer);
    world_.Tell(&Observer::OnLoaded, options_.name, *step);
  }
  Progress();
  Perform(core_.OnLoaded(status, is_helped ? "another machine read the checkpoint" : ""));
}

void WorkerProcess::TakeSnapshot(int64_t step, absl::Duration until) {
  Progress();  // a worker that waits for storage says so
  auto payload = writer_->Acquire(absl::ZeroDuration());
  if (!payload.ok()) {
    if (world_.timeline.now() >= until) {
      return Perform(core_.OnSnapshot(step, -1, payload.status()));
    }
    return After(kBufferPoll, [this, step, until] { TakeSnapshot(step, until); });
  }
  std::memcpy(payload->data(), &step, sizeof(step));
  After(world_.rng.Between(absl::ZeroDuration(), kCopyMax), [this, step] {
    const absl::StatusOr<int> buffer = writer_->Seal(step, sizeof(step));
    Perform(core_.OnSnapshot(step, buffer.ok() ? *buffer : -1, buffer.status()));
  });
}

}  // namespace megascale::sim
