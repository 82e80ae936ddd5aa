#include "actors/checkpoint_actor.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "actors/actor_process.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/base/version.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/numerics.h"
#include "runtime/checkpoint/owner.h"
#include "runtime/checkpoint/product_table.h"
#include "runtime/checkpoint/shared_directory.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/data/batches/loader.h"

namespace megascale::actors {
namespace {

using megascale::link::v1::HostAssignment;

constexpr std::chrono::seconds kStorageRetryMax(30);

std::string StepDirectory(const HostAssignment& assignment, int64_t step, int64_t attempt) {
  return absl::StrCat(assignment.checkpoint_directory(), "/",
                      checkpoint::StepDirectoryName(step, attempt));
}

checkpoint::v1::Manifest ManifestOf(const PersisterOptions& options, int64_t step,
                                    int64_t attempt) {
  const HostAssignment& assignment = options.assignment;
  checkpoint::v1::Manifest manifest;
  manifest.set_megascale_version(base::kVersion);
  manifest.set_job_id(assignment.job_id());
  manifest.set_attempt(attempt);
  manifest.set_step(step);
  manifest.set_next_sample(data::NextSample(assignment.spec(), step, assignment.sample_offset()));
  *manifest.mutable_spec() = assignment.spec();
  *manifest.mutable_data() = assignment.data();
  if (assignment.has_owner()) *manifest.mutable_owner() = assignment.owner();
  *manifest.mutable_numerics() =
      checkpoint::MakeNumericsFingerprint(assignment.spec(), options.numerics);
  return manifest;
}

// Checkpoints can be used where the job's tokenizer is not.
absl::Status WriteTokenizer(const PersisterOptions& options, const std::string& directory) {
  const data::JobTokenizer* tokenizer =
      options.dataset == nullptr ? nullptr : options.dataset->tokenizer();
  if (tokenizer == nullptr) return absl::OkStatus();
  for (const auto& file : tokenizer->files) {
    RETURN_IF_ERROR(base::WriteFileDurably(absl::StrCat(directory, "/", file.name), file.content));
  }
  return absl::OkStatus();
}

// Writes the table by which the ranks compute: the copy of rank 0, which writes its checkpoints on
// this machine, whatever became of the file in the job's folder.
absl::Status WriteProductTable(const PersisterOptions& options, const std::string& directory,
                               checkpoint::v1::NumericsFingerprint* fingerprint) {
  if (const auto region = options.snapshots.find(0); region != options.snapshots.end()) {
    const absl::StatusOr<std::string> table = checkpoint::KeptTable(*region->second);
    if (table.ok()) return checkpoint::StoreProductTable(*table, directory, fingerprint);
  }
  return checkpoint::CopyProductTable(options.assignment.checkpoint_directory(), directory,
                                      fingerprint);
}

absl::Status Persist(const PersisterOptions& options, const PersistSnapshot& message) {
  const auto region = options.snapshots.find(message.rank);
  if (region == options.snapshots.end()) {
    return absl::NotFoundError(absl::StrCat("rank ", message.rank, " has no snapshots here"));
  }
  ASSIGN_OR_RETURN(const auto reader, checkpoint::SnapshotReader::Open(region->second.get()));
  const auto snapshot = reader.Find(message.attempt, message.step);
  if (!snapshot.has_value()) {
    return absl::NotFoundError(absl::StrCat("rank ", message.rank, " has no snapshot of step ",
                                            message.step, " any more"));
  }
  return checkpoint::PersistShard(reader, *snapshot, options.assignment.checkpoint_directory(),
                                  options.assignment.owner());
}

// Every preflight has passed, so every machine has seen the nonce.
void RemoveNonce(const HostAssignment& assignment) {
  if (assignment.nonce_node_id() != assignment.node_id()) return;
  checkpoint::RemoveNonce(assignment.checkpoint_directory());
}

}  // namespace

void CheckpointState::OnTakeSnapshot(const TakeSnapshot& message) {
  const absl::Status begun = engine->BeginSnapshot(message.step);
  const absl::StatusOr<int> buffer =
      begun.ok() ? engine->FinishSnapshot() : absl::StatusOr<int>(begun);
  caf::anon_send(worker, SnapshotTaken{message.attempt, message.step, buffer.ok() ? *buffer : -1,
                                       Outcome::Of(buffer.status())});
}

CheckpointActor::behavior_type Checkpoint(CheckpointActor::stateful_pointer<CheckpointState> self,
                                          std::shared_ptr<engine::RankEngine> engine,
                                          WorkerEvents worker) {
  EndProcessOnException(self);
  self->state.engine = std::move(engine);
  self->state.worker = std::move(worker);
  return {[=](const TakeSnapshot& message) { self->state.OnTakeSnapshot(message); }};
}

std::chrono::seconds PersisterState::RetryDelay() const {
  return std::min(kStorageRetryMax, std::chrono::seconds(1 << std::clamp(failures_ - 1, 0, 5)));
}

void PersisterState::SetStorageFails(bool fails) const {
  for (const auto& [rank, region] : options.snapshots) {
    const auto reader = checkpoint::SnapshotReader::Open(region.get());
    if (reader.ok()) reader->SetStorageFails(fails);
  }
}

void PersisterState::ReportStorageError(const absl::Status& status) const {
  if (absl::IsPermissionDenied(status) && base::ErrnoOf(status) == 0) options.lose(status);
  base::LogWarning(absl::StrCat("storage: ", status.message()));
  link::v1::FromHost message;
  message.mutable_storage_error()->set_message(std::string(status.message()));
  options.report(message);
}

bool PersisterState::WorkOff() {
  std::deque<Task> left;
  for (const Task& task : std::exchange(waiting, {})) {
    const absl::Status status =
        std::visit([this](const auto& one) { return DoWithRoom(one); }, task);
    // NotFound without an errno: a newer snapshot has replaced this one, which is no loss. With an
    // errno a file is missing, which is an error.
    const bool gone = absl::IsNotFound(status) && base::ErrnoOf(status) == 0;
    if (status.ok() || gone || absl::IsAborted(status)) continue;
    ReportStorageError(status);
    // Trying again may help when storage failed, but never with a torn snapshot.
    if (!absl::IsDataLoss(status)) left.push_back(task);
  }
  waiting = std::move(left);
  if (waiting.empty() && failures_ > 0) base::LogInfo("storage: can be written again");
  failures_ = waiting.empty() ? 0 : failures_ + 1;
  SetStorageFails(failures_ > 0);
  return failures_ > 0;
}

template <typename Message>
absl::Status PersisterState::DoWithRoom(const Message& message) {
  absl::Status status = Do(message);
  const int error = base::ErrnoOf(status);
  if (error != ENOSPC && error != EDQUOT) return status;
  agent::v1::CheckpointId newest;
  newest.set_attempt(message.attempt);
  newest.set_step(message.step);
  const auto given_up = checkpoint::GiveUpIncomplete(options.assignment.checkpoint_directory(),
                                                     newest, options.assignment.owner());
  if (!given_up.ok()) base::LogWarning(absl::StrCat("storage: ", given_up.status().message()));
  if (!given_up.ok() || *given_up == 0) return status;
  base::LogInfo(absl::StrCat("storage: full; gave up ", *given_up, " incomplete checkpoints"));
  return Do(message);
}

absl::Status PersisterState::Do(const PersistSnapshot& message) {
  RETURN_IF_ERROR(Persist(options, message));
  link::v1::FromHost report;
  report.mutable_shard()->set_rank(message.rank);
  report.mutable_shard()->set_attempt(message.attempt);
  report.mutable_shard()->set_step(message.step);
  report.mutable_shard()->set_buffer(message.buffer);
  options.report(report);
  return absl::OkStatus();
}

absl::Status PersisterState::Do(const WriteCheckpointManifest& message) {
  const std::string directory = StepDirectory(options.assignment, message.step, message.attempt);
  RETURN_IF_ERROR(checkpoint::CheckNotGivenUp(directory));
  RETURN_IF_ERROR(checkpoint::CheckOwner(options.assignment.checkpoint_directory(),
                                         options.assignment.owner()));
  RETURN_IF_ERROR(WriteTokenizer(options, directory));
  checkpoint::v1::Manifest manifest = ManifestOf(options, message.step, message.attempt);
  // Jobs on GPUs alone compute by a table.
  if (options.assignment.spec().device() == job::v1::DEVICE_CUDA) {
    RETURN_IF_ERROR(WriteProductTable(options, directory, manifest.mutable_numerics()));
  }
  RETURN_IF_ERROR(checkpoint::WriteManifest(directory, manifest));
  base::LogInfo(absl::StrCat("checkpoint ", directory));
  link::v1::FromHost report;
  report.mutable_manifest()->set_attempt(message.attempt);
  report.mutable_manifest()->set_step(message.step);
  report.mutable_manifest()->set_directory(directory);
  report.mutable_manifest()->set_has_owner(manifest.has_owner());
  options.report(report);
  return absl::OkStatus();
}

void PersisterState::OnRetain(const std::string& serialized) {
  link::v1::Retain retain;
  if (!retain.ParseFromString(serialized) || retain.committed().empty()) return;
  const std::vector<agent::v1::CheckpointId> committed = {retain.committed().begin(),
                                                          retain.committed().end()};
  // Checkpoints older than a commit are no longer needed.
  const int64_t newest = committed.back().step();
  std::erase_if(waiting, [&](const Task& task) {
    return std::visit([&](const auto& one) { return one.step <= newest; }, task);
  });
  const absl::Status status =
      checkpoint::ApplyRetention(options.assignment.checkpoint_directory(),
                                 {committed, retain.attempt(), options.assignment.owner()});
  if (!status.ok()) ReportStorageError(status);
  // Reported after a failure, too: a job's end does not wait for files that cannot be deleted.
  link::v1::FromHost report;
  *report.mutable_retained()->mutable_newest() = *retain.committed().rbegin();
  options.report(report);
}

PersisterActor::behavior_type Persister(PersisterActor::stateful_pointer<PersisterState> self,
                                        PersisterOptions options) {
  EndProcessOnException(self);
  self->state.options = std::move(options);
  // In this actor's thread: batches must not wait for storage that stands still.
  RemoveNonce(self->state.options.assignment);
  const auto go_on = [=] {
    PersisterState& state = self->state;
    if (state.retry_scheduled || !state.WorkOff()) return;
    state.retry_scheduled = true;
    self->delayed_send(self, state.RetryDelay(), RetryStorage{state.options.assignment.attempt()});
  };
  return {
      [=](const PersistSnapshot& message) {
        self->state.waiting.push_back(message);
        go_on();
      },
      [=](const WriteCheckpointManifest& message) {
        self->state.waiting.push_back(message);
        go_on();
      },
      [=](const RetryStorage&) {
        self->state.retry_scheduled = false;
        go_on();
      },
      [=](const std::string& retain) { self->state.OnRetain(retain); },
  };
}

}  // namespace megascale::actors
