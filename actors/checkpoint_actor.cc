#include "actors/checkpoint_actor.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "actors/exceptions.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/base/version.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/numerics.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/ops/ops.h"

namespace megascale::actors {
namespace {

using megascale::link::v1::HostAssignment;

constexpr std::chrono::seconds kStorageRetry(2);

std::string StepDirectory(const HostAssignment& assignment, int64_t step, int64_t attempt) {
  return absl::StrCat(assignment.checkpoint_directory(), "/",
                      checkpoint::StepDirectoryName(step, attempt));
}

checkpoint::v1::Manifest ManifestOf(const HostAssignment& assignment, int64_t step,
                                    int64_t attempt) {
  checkpoint::v1::Manifest manifest;
  manifest.set_megascale_version(base::kVersion);
  manifest.set_job_id(assignment.job_id());
  manifest.set_attempt(attempt);
  manifest.set_step(step);
  manifest.set_next_sample(step * assignment.spec().train().global_batch_size());
  *manifest.mutable_spec() = assignment.spec();
  *manifest.mutable_data() = assignment.data();
  *manifest.mutable_numerics() =
      checkpoint::MakeNumericsFingerprint(assignment.spec(), ops::InstructionSet());
  return manifest;
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
  return checkpoint::PersistShard(reader, *snapshot, options.assignment.checkpoint_directory());
}

}  // namespace

void CheckpointState::OnTakeSnapshot(const TakeSnapshot& message) {
  const absl::StatusOr<int> buffer = engine->TakeSnapshot(message.step);
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

bool PersisterState::ReportStorageError(const absl::Status& status) {
  base::LogWarning(absl::StrCat("storage: ", status.message()));
  link::v1::FromHost message;
  message.mutable_storage_error()->set_message(std::string(status.message()));
  options.report(message);
  // A snapshot that is gone or torn will not come back; storage may.
  return !absl::IsNotFound(status) && !absl::IsAborted(status) && !absl::IsDataLoss(status);
}

bool PersisterState::OnPersist(const PersistSnapshot& message) {
  const absl::Status status = Persist(options, message);
  if (!status.ok()) return !ReportStorageError(status);
  link::v1::FromHost report;
  report.mutable_shard()->set_rank(message.rank);
  report.mutable_shard()->set_attempt(message.attempt);
  report.mutable_shard()->set_step(message.step);
  report.mutable_shard()->set_buffer(message.buffer);
  options.report(report);
  return true;
}

bool PersisterState::OnWriteManifest(const WriteCheckpointManifest& message) {
  const std::string directory = StepDirectory(options.assignment, message.step, message.attempt);
  const absl::Status status = checkpoint::WriteManifest(
      directory, ManifestOf(options.assignment, message.step, message.attempt));
  if (!status.ok()) return !ReportStorageError(status);
  base::LogInfo(absl::StrCat("checkpoint ", directory));
  link::v1::FromHost report;
  report.mutable_manifest()->set_attempt(message.attempt);
  report.mutable_manifest()->set_step(message.step);
  report.mutable_manifest()->set_directory(directory);
  options.report(report);
  return true;
}

void PersisterState::OnRetain(const std::string& serialized) {
  link::v1::Retain retain;
  if (!retain.ParseFromString(serialized) || retain.committed().empty()) return;
  const std::vector<agent::v1::CheckpointId> committed = {retain.committed().begin(),
                                                          retain.committed().end()};
  const absl::Status status =
      checkpoint::ApplyRetention(options.assignment.checkpoint_directory(), committed);
  if (!status.ok()) (void)ReportStorageError(status);
  // Told after a failure too: a job's end does not wait for files that cannot be deleted.
  link::v1::FromHost report;
  *report.mutable_retained()->mutable_newest() = *retain.committed().rbegin();
  options.report(report);
}

PersisterActor::behavior_type Persister(PersisterActor::stateful_pointer<PersisterState> self,
                                        PersisterOptions options) {
  EndProcessOnException(self);
  self->state.options = std::move(options);
  return {
      [=](const PersistSnapshot& message) {
        if (!self->state.OnPersist(message)) self->delayed_send(self, kStorageRetry, message);
      },
      [=](const WriteCheckpointManifest& message) {
        if (!self->state.OnWriteManifest(message)) {
          self->delayed_send(self, kStorageRetry, message);
        }
      },
      [=](const std::string& retain) { self->state.OnRetain(retain); },
  };
}

}  // namespace megascale::actors
