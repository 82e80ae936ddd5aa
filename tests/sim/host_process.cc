#include "tests/sim/host_process.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/job/job_spec.h"

namespace megascale::sim {
namespace {

constexpr absl::Duration kStartMax = absl::Milliseconds(500);
constexpr absl::Duration kPreflightMax = absl::Milliseconds(900);
constexpr absl::Duration kWorkMin = absl::Milliseconds(2);
constexpr absl::Duration kWorkMax = absl::Milliseconds(150);
constexpr absl::Duration kStorageRetry = absl::Seconds(2);
constexpr absl::Duration kAwayPause = absl::Seconds(1);
constexpr absl::Duration kAwayShort = absl::Seconds(20);

}  // namespace

HostProcess::HostProcess(World* world, CheckpointStorage* storage, Options options)
    : world_(*world), storage_(*storage), options_(std::move(options)) {}

void HostProcess::After(absl::Duration delay, std::function<void()> run) {
  world_.timeline.After(delay, [self = shared_from_this(), run = std::move(run)] {
    if (self->runs()) run();
  });
}

void HostProcess::Start() {
  const absl::Duration started = world_.rng.Between(absl::Milliseconds(20), kStartMax);
  if (!options_.preflight_only) return WorkLater(started);
  After(started + world_.rng.Between(kWorkMin, kPreflightMax), [this] { RunPreflight(); });
}

void HostProcess::Fail(telemetry::FailureClass failure_class, const absl::Status& why) {
  NoteStorage();
  link::v1::FromHost message;
  message.mutable_failure()->set_failure_class(failure_class);
  message.mutable_failure()->set_message(std::string(why.message()));
  options_.report(message);
  options_.exit(1);
}

// A fault explains that the job cannot use its storage.
void HostProcess::NoteStorage() {
  if (!storage_.IsAway() && !storage_.IsTaken(options_.name.job_id)) return;
  world_.Break({options_.name.node_id, Harm::kData}, "cannot use the checkpoint directory");
}

checkpoint::v1::Owner HostProcess::Owner() const {
  return world_.tampering.no_owners ? checkpoint::v1::Owner() : options_.job.owner();
}

// As actors/preflight does.
void HostProcess::RunPreflight() {
  link::v1::FromHost message;
  message.mutable_preflight()->set_state(agent::Preflight::STATE_PASSED);
  message.mutable_preflight()->set_owns_directory(options_.job.has_owner());
  const absl::Status claimed = storage_.Claim(options_.job);
  const bool ran = options_.job.ran_here();
  if (absl::IsPermissionDenied(claimed) && ran) {
    return Fail(telemetry::FAILURE_CLASS_REFUSED, claimed);
  }
  if (!claimed.ok() && ran) {
    if (!away_since_.has_value()) away_since_ = world_.timeline.now();
    const absl::Duration waited = world_.timeline.now() - *away_since_;
    const auto& fault = options_.job.spec().fault();
    if (fault.has_checkpoint_timeout() && waited >= job::ToDuration(fault.checkpoint_timeout())) {
      return Fail(telemetry::FAILURE_CLASS_STORAGE, claimed);
    }
    message.mutable_preflight()->Clear();
    message.mutable_preflight()->set_state(agent::Preflight::STATE_RUNNING);
    message.mutable_preflight()->set_progress(++num_waits_);
    options_.report(message);
    if (waited >= kAwayShort) SayStorageError(claimed);
    return After(kAwayPause, [this] { RunPreflight(); });
  }
  if (!claimed.ok()) {
    NoteStorage();
    message.mutable_preflight()->set_state(agent::Preflight::STATE_REFUSED);
    message.mutable_preflight()->set_message(std::string(claimed.message()));
  }
  if (!options_.job.from_checkpoint().empty()) {
    message.mutable_preflight()->set_first_step(CheckpointStorage::kGivenStep);
  }
  // The data of a job with this name cannot be read.
  if (options_.job.spec().name() == "refused") {
    message.mutable_preflight()->set_state(agent::Preflight::STATE_REFUSED);
    message.mutable_preflight()->set_message("data.files: cannot be read");
  }
  if (world_.timeline.now() < world_.data_gone_until[options_.name.node_id]) {
    message.mutable_preflight()->set_state(agent::Preflight::STATE_REFUSED);
    message.mutable_preflight()->set_message("data.files: the folder is empty");
  }
  if (message.preflight().state() == agent::Preflight::STATE_PASSED) {
    world_.Tell(&Observer::OnPreflightPassed, options_.name);
  }
  options_.report(message);
  options_.exit(0);
}

megascale::telemetry::v1::RankStatus HostProcess::Heartbeat() const {
  megascale::telemetry::v1::RankStatus status;
  status.set_pid(options_.pid);
  status.set_alive_age_seconds(
      hung_since_.has_value() ? absl::ToDoubleSeconds(world_.timeline.now() - *hung_since_) : 0.1);
  return status;
}

void HostProcess::Send(const link::v1::ToHost& message) {
  if (!alive_) return;
  inbox_.push_back(message);
  WorkLater(world_.rng.Between(kWorkMin, kWorkMax));
}

void HostProcess::WorkLater(absl::Duration delay) {
  if (works_ || inbox_.empty()) return;
  works_ = true;
  After(delay, [this] {
    works_ = false;
    Work();
  });
}

void HostProcess::Work() {
  if (inbox_.empty()) return;
  const link::v1::ToHost message = std::move(inbox_.front());
  inbox_.pop_front();
  // A message that storage refused is tried again later; the next message does not wait for it.
  if (!Carry(message)) After(kStorageRetry, [this, message] { Send(message); });
  WorkLater(world_.rng.Between(kWorkMin, kWorkMax));
}

bool HostProcess::Carry(const link::v1::ToHost& message) {
  // Checkpoints older than a commit are no longer needed.
  if (message.has_persist()) {
    return message.persist().step() <= newest_committed_ || OnPersist(message.persist());
  }
  if (message.has_finalize()) {
    return message.finalize().step() <= newest_committed_ || OnFinalize(message.finalize());
  }
  if (message.has_retain()) OnRetain(message.retain());
  return true;
}

// Tells the workers not to wait for storage while it fails.
void HostProcess::SetStorageFails(bool fails) {
  for (const auto& [rank, region] : options_.snapshots) {
    checkpoint::SnapshotReader::Open(region.get())->SetStorageFails(fails);
  }
}

bool HostProcess::MakesRoom(const absl::Status& status, int64_t attempt, int64_t step) {
  if (!absl::IsResourceExhausted(status)) return false;
  agent::CheckpointId newest;
  newest.set_attempt(attempt);
  newest.set_step(step);
  storage_.GiveUpIncomplete(Owner(), options_.name.job_id, newest);
  return true;
}

void HostProcess::SayStorageError(const absl::Status& status) {
  if (absl::IsPermissionDenied(status)) return Fail(telemetry::FAILURE_CLASS_REFUSED, status);
  link::v1::FromHost message;
  message.mutable_storage_error()->set_message(std::string(status.message()));
  options_.report(message);
}

bool HostProcess::OnPersist(const link::v1::Persist& persist) {
  const auto region = options_.snapshots.find(persist.rank());
  if (region == options_.snapshots.end()) return true;
  const auto reader = checkpoint::SnapshotReader::Open(region->second.get());
  const auto snapshot = reader->Find(options_.name.attempt, persist.step());
  if (!snapshot.has_value()) {
    SayStorageError(absl::NotFoundError("the snapshot is gone"));
    return true;
  }
  agent::SealedSnapshot shard;
  shard.set_rank(persist.rank());
  shard.set_attempt(snapshot->attempt);
  shard.set_step(snapshot->step);
  absl::Status status = storage_.WriteShard(Owner(), options_.name.job_id, shard);
  if (MakesRoom(status, shard.attempt(), shard.step())) {
    status = storage_.WriteShard(Owner(), options_.name.job_id, shard);
  }
  SetStorageFails(!status.ok());
  if (!status.ok()) {
    SayStorageError(status);
    return false;
  }
  link::v1::FromHost message;
  message.mutable_shard()->set_rank(persist.rank());
  message.mutable_shard()->set_attempt(options_.name.attempt);
  message.mutable_shard()->set_step(persist.step());
  message.mutable_shard()->set_buffer(persist.buffer());
  options_.report(message);
  return true;
}

bool HostProcess::OnFinalize(const agent::CheckpointId& id) {
  const auto write = [&] {
    return storage_.WriteManifest(Owner(), options_.name.job_id, id,
                                  options_.job.placements_size());
  };
  auto path = write();
  if (MakesRoom(path.status(), id.attempt(), id.step())) path = write();
  if (absl::IsNotFound(path.status())) return true;
  if (!path.ok()) {
    SayStorageError(path.status());
    return false;
  }
  world_.Say(options_.name.node_id, absl::StrCat("checkpoint ", *path));
  link::v1::FromHost message;
  message.mutable_manifest()->set_attempt(id.attempt());
  message.mutable_manifest()->set_step(id.step());
  message.mutable_manifest()->set_directory(*path);
  message.mutable_manifest()->set_has_owner(options_.job.has_owner());
  options_.report(message);
  return true;
}

void HostProcess::OnRetain(const link::v1::Retain& retain) {
  if (retain.committed().empty()) return;
  checkpoint::Retention retention;
  retention.committed = {retain.committed().begin(), retain.committed().end()};
  retention.attempt = retain.attempt();
  retention.owner = Owner();
  newest_committed_ = retention.committed.back().step();
  if (world_.tampering.retain) world_.tampering.retain(&retention.committed);
  const absl::Status status = storage_.ApplyRetention(options_.name.job_id, retention);
  if (!status.ok()) SayStorageError(status);
  if (absl::IsPermissionDenied(status)) return;  // it has ended
  link::v1::FromHost message;
  *message.mutable_retained()->mutable_newest() = *retain.committed().rbegin();
  options_.report(message);
}

}  // namespace megascale::sim
