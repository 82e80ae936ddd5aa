#include "tests/versions/played_machine.h"

#include <algorithm>
#include <csignal>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace megascale::versions {
namespace {

using agent::kHostRank;
using agent::v1::ActualJob;
using agent::v1::ActualRank;
using agent::v1::ActualState;

constexpr int kRoundsMax = 8;

std::string KeyOf(const std::string& job_id, int64_t attempt) {
  return absl::StrCat(job_id, "/", attempt);
}
std::string KeyOf(const ActualJob& job) { return KeyOf(job.job_id(), job.attempt()); }

const ActualJob* FindJob(const ActualState& state, const std::string& job_id) {
  for (const ActualJob& job : state.jobs()) {
    if (job.job_id() == job_id) return &job;
  }
  return nullptr;
}

}  // namespace

bool PlayedMachine::Shows(const ActualJob& job, const Process& process) {
  if (job.attempt() != process.attempt) return false;
  if (process.rank == kHostRank) {
    return job.host().pid() > 0 && job.host().num_restarts() == process.num_restarts;
  }
  return std::any_of(job.ranks().begin(), job.ranks().end(), [&](const ActualRank& actual) {
    return actual.status().rank() == process.rank && actual.state() == ActualRank::STATE_RUNNING;
  });
}

void PlayedMachine::Take(const agent::v1::DesiredState& desired) {
  core_.OnDesired(desired, now_);
  Settle();
}

ActualState PlayedMachine::Follow(const ActualState& recorded) {
  now_ += absl::Milliseconds(20);
  if (recorded.draining()) core_.Drain();
  for (int round = 0; round < kRoundsMax; ++round) {
    for (const ActualJob& job : recorded.jobs()) FollowJob(job);
    EndKilled(recorded);
  }
  return Report(recorded);
}

void PlayedMachine::Settle() {
  for (;;) {
    const std::vector<agent::Action> actions = core_.Reconcile(now_);
    if (actions.empty()) return;
    for (const agent::Action& action : actions) Do(action);
  }
}

void PlayedMachine::Do(const agent::Action& action) {
  if (const auto* start = std::get_if<agent::StartProcess>(&action)) {
    ++num_starts_;
    Process& process = processes_[start->process_id];
    process.id = start->process_id;
    process.job_id = start->job->job_id();
    process.rank = start->rank;
    process.attempt = start->job->attempt();
    if (process.rank == kHostRank) {
      process.num_restarts = told_[KeyOf(process.job_id, process.attempt)].num_hosts++;
    }
    core_.OnStarted(start->process_id, static_cast<int>(1000 + start->process_id), now_);
  } else if (const auto* kill = std::get_if<agent::KillProcess>(&action)) {
    ++num_kills_;
    processes_.at(kill->process_id).killed = true;
  } else if (const auto* drop = std::get_if<agent::DropMemory>(&action)) {
    held_.erase(drop->job_id);
  }
}

const PlayedMachine::Process* PlayedMachine::Find(const std::string& job_id, int64_t attempt,
                                                  int rank) const {
  for (const auto& [id, process] : processes_) {
    if (process.job_id == job_id && process.attempt == attempt && process.rank == rank) {
      return &process;
    }
  }
  return nullptr;
}

const PlayedMachine::Process* PlayedMachine::AnyWorker(const ActualJob& recorded) const {
  for (const auto& [id, process] : processes_) {
    if (process.job_id == recorded.job_id() && process.attempt == recorded.attempt() &&
        process.rank != kHostRank) {
      return &process;
    }
  }
  return nullptr;
}

void PlayedMachine::FollowJob(const ActualJob& recorded) {
  FollowSteps(recorded);
  FollowSnapshots(recorded);
  FollowHost(recorded);
  for (const ActualRank& rank : recorded.ranks()) FollowRank(recorded, rank);
  Settle();
}

void PlayedMachine::FollowSteps(const ActualJob& recorded) {
  const Process* worker = AnyWorker(recorded);
  if (worker == nullptr) return;
  Told& told = told_[KeyOf(recorded)];
  for (const auto& step : recorded.steps()) {
    if (step.attempt() != recorded.attempt() || step.step() <= told.step) continue;
    told.step = step.step();
    link::v1::FromWorker message;
    *message.mutable_step() = step;
    core_.OnWorkerMessage(worker->id, message);
  }
  for (; told.num_warnings < recorded.warnings_size(); ++told.num_warnings) {
    link::v1::FromWorker message;
    message.set_warning(recorded.warnings(told.num_warnings));
    core_.OnWorkerMessage(worker->id, message);
  }
}

void PlayedMachine::FollowSnapshots(const ActualJob& recorded) {
  std::vector<checkpoint::SealedSnapshot>& held = held_[recorded.job_id()];
  std::vector<checkpoint::SealedSnapshot> now;
  for (const auto& one : recorded.snapshots()) {
    checkpoint::SealedSnapshot snapshot;
    snapshot.rank = one.rank();
    snapshot.attempt = one.attempt();
    snapshot.step = one.step();
    for (const auto& before : held) {
      const bool is_same = before.rank == snapshot.rank && before.attempt == snapshot.attempt &&
                           before.step == snapshot.step;
      if (is_same) snapshot.persisted = before.persisted;
    }
    now.push_back(snapshot);
  }
  held = now;
  core_.OnSnapshots(recorded.job_id(), std::move(now));
}

void PlayedMachine::FollowHost(const ActualJob& recorded) {
  const Process* host = Find(recorded.job_id(), recorded.attempt(), kHostRank);
  if (host == nullptr) return;
  agent::v1::Preflight& told = told_[KeyOf(recorded)].preflight;
  if (recorded.has_preflight() &&
      told.SerializeAsString() != recorded.preflight().SerializeAsString()) {
    told = recorded.preflight();
    link::v1::FromHost message;
    *message.mutable_preflight() = told;
    core_.OnHostMessage(host->id, message);
  }
  for (const auto& shard : recorded.shards()) {
    link::v1::FromHost message;
    message.mutable_shard()->set_rank(shard.rank());
    message.mutable_shard()->set_attempt(shard.attempt());
    message.mutable_shard()->set_step(shard.step());
    core_.OnHostMessage(host->id, message);
  }
  for (const auto& manifest : recorded.manifests()) {
    link::v1::FromHost message;
    *message.mutable_manifest() = manifest;
    core_.OnHostMessage(host->id, message);
  }
  if (recorded.has_retained()) {
    link::v1::FromHost message;
    *message.mutable_retained()->mutable_newest() = recorded.retained();
    core_.OnHostMessage(host->id, message);
  }
  if (!recorded.storage_error().empty()) {
    link::v1::FromHost message;
    message.mutable_storage_error()->set_message(recorded.storage_error());
    core_.OnHostMessage(host->id, message);
  }
}

void PlayedMachine::FollowRank(const ActualJob& recorded, const ActualRank& rank) {
  const Process* process = Find(recorded.job_id(), recorded.attempt(), rank.status().rank());
  if (process == nullptr || rank.state() == ActualRank::STATE_RUNNING) return;
  link::v1::FromWorker message;
  agent::ProcessEnd end;
  if (rank.state() != ActualRank::STATE_FAILED) {
    message.mutable_finished()->set_stopped(rank.state() == ActualRank::STATE_STOPPED);
    message.mutable_finished()->set_step(rank.status().step());
    core_.OnWorkerMessage(process->id, message);
  } else if (rank.failure().signal() != 0) {
    end.status = rank.failure().signal();
  } else {
    *message.mutable_failure() = rank.failure();
    core_.OnWorkerMessage(process->id, message);
    end.status = 1 << 8;
  }
  End(process->id, end);
}

void PlayedMachine::End(int64_t process_id, const agent::ProcessEnd& end) {
  core_.OnEnded(process_id, end, now_);
  processes_.erase(process_id);
}

void PlayedMachine::EndKilled(const ActualState& recorded) {
  std::vector<int64_t> gone;
  for (const auto& [id, process] : processes_) {
    const ActualJob* job = FindJob(recorded, process.job_id);
    const bool is_shown = job != nullptr && Shows(*job, process);
    if (process.killed && !is_shown) gone.push_back(id);
  }
  for (const int64_t id : gone) {
    agent::ProcessEnd end;
    end.status = SIGKILL;
    end.killed = true;
    End(id, end);
  }
  Settle();
}

ActualState PlayedMachine::Report(const ActualState& recorded) {
  std::map<int64_t, telemetry::v1::RankStatus> heartbeats;
  for (const auto& [id, process] : processes_) {
    const ActualJob* job = FindJob(recorded, process.job_id);
    if (job == nullptr) continue;
    for (const ActualRank& rank : job->ranks()) {
      if (rank.status().rank() == process.rank) heartbeats[id] = rank.status();
    }
  }
  return core_.Report(heartbeats);
}

}  // namespace megascale::versions
