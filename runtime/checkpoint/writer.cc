#include "runtime/checkpoint/writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/format/message_json.h"
#include "runtime/checkpoint/format/shard.h"
#include "runtime/checkpoint/format/tensor_index.h"
#include "runtime/checkpoint/owner.h"
#include "runtime/checkpoint/place_file.h"
#include "runtime/job/job_spec.h"

namespace megascale::checkpoint {
namespace {

constexpr size_t kWriteBytes = 4 << 20;
constexpr size_t kShardRecordBytesMax = 64 << 20;
constexpr absl::string_view kDeletedPrefix = ".deleted-";

using agent::v1::CheckpointId;

std::pair<int64_t, int64_t> Age(const CheckpointId& id) { return {id.step(), id.attempt()}; }

// Writes and syncs `path`; returns the SHA-256 of the data.
absl::StatusOr<std::string> WriteAndSync(const std::string& path, absl::string_view data) {
  base::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return base::ErrnoStatus(errno, absl::StrCat("create ", path));
  base::Sha256 hash;
  const size_t all = data.size();
  while (!data.empty()) {
    const absl::string_view piece = data.substr(0, kWriteBytes);
    hash.Update(piece);
    if (const absl::Status written = base::WriteAll(fd.get(), piece); !written.ok()) {
      const int64_t end = std::max<int64_t>(0, ::lseek(fd.get(), 0, SEEK_CUR));
      return base::ErrnoStatus(base::ErrnoOf(written),
                               absl::StrCat(path, ": wrote ", base::FormatBytes(end), " of ",
                                            base::FormatBytes(static_cast<int64_t>(all))));
    }
    data.remove_prefix(piece.size());
  }
  if (::fsync(fd.get()) != 0) return base::ErrnoStatus(errno, absl::StrCat("sync ", path));
  return hash.Finish();
}

absl::StatusOr<v1::ShardFile> ReadShardRecord(const std::string& directory, int rank) {
  const std::string path = absl::StrCat(directory, "/", ShardRecordName(rank));
  const auto json = base::ReadFile(path, kShardRecordBytesMax);
  if (absl::IsNotFound(json.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint ", directory, ": the shard of rank ", rank, " is missing"));
  }
  if (!json.ok()) return json.status();
  v1::ShardFile record;
  RETURN_IF_ERROR(FromJson(*json, path, &record));
  struct stat info;
  const std::string file = absl::StrCat(directory, "/", ShardFileName(rank));
  if (record.file() != ShardFileName(rank) || record.rank() != rank) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": describes another shard"));
  }
  if (::stat(file.c_str(), &info) != 0) return base::ErrnoStatus(errno, file);
  if (info.st_size != record.size_bytes()) {
    return absl::FailedPreconditionError(absl::StrCat(file, ": has ", info.st_size, " bytes, ",
                                                      record.size_bytes(), " were written"));
  }
  return record;
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (!error) return absl::OkStatus();
  return base::ErrnoStatus(error.value(), absl::StrCat("delete ", path));
}

// The path of a step directory, and the path to which it is moved before its files are deleted.
std::string PathOf(const std::string& root, const CheckpointId& id) {
  return absl::StrCat(root, "/", StepDirectoryName(id.step(), id.attempt()));
}
std::string PathOfDeleted(const std::string& root, const CheckpointId& id) {
  return absl::StrCat(root, "/", kDeletedPrefix, StepDirectoryName(id.step(), id.attempt()));
}

// Makes a step's directory, and never one that was there before: without the directory around it,
// its file system is not mounted.
absl::Status MakeStepDirectory(const std::string& root, const std::string& directory,
                               const v1::Owner& owner) {
  RETURN_IF_ERROR(CheckOwner(root, owner));
  // An older release's driver names no owner.
  if (owner.job_id().empty()) RETURN_IF_ERROR(base::MakeDirectories(root));
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return base::ErrnoStatus(errno, absl::StrCat("make directory ", directory));
  }
  return base::SyncDirectory(root);
}

bool HasManifest(const std::string& directory) {
  return ::access(absl::StrCat(directory, "/", kManifestFile).c_str(), F_OK) == 0;
}

// Deletes directories that were moved away. First restores checkpoints among `committed` that an
// interrupted GiveUpIncomplete had moved away.
// Returns whether a complete checkpoint is another job's: a take-over leaves the one from which the
// job starts in its place.
bool IsOfAnother(const std::string& directory, const v1::Owner& owner) {
  if (owner.job_id().empty()) return false;
  const auto manifest = ReadManifest(directory);
  if (!manifest.ok()) return false;
  if (manifest->has_owner()) return !IsSameOwner(manifest->owner(), owner);
  return manifest->job_id() != owner.job_id();
}

absl::Status RemoveLeftovers(const std::string& root, const std::vector<CheckpointId>& committed) {
  for (const CheckpointId& id : committed) {
    const std::string away = PathOfDeleted(root, id);
    if (HasManifest(away)) RETURN_IF_ERROR(RenamePath(away, PathOf(root, id)));
  }
  std::error_code error;
  std::vector<std::string> leftovers;
  for (std::filesystem::directory_iterator entry(root, error), end; !error && entry != end;
       entry.increment(error)) {
    if (absl::StartsWith(entry->path().filename().string(), kDeletedPrefix)) {
      leftovers.push_back(entry->path().string());
    }
  }
  if (error) return base::ErrnoStatus(error.value(), absl::StrCat("checkpoint directory ", root));
  for (const std::string& path : leftovers) RETURN_IF_ERROR(RemoveTree(path));
  return absl::OkStatus();
}

}  // namespace

absl::Status PersistShard(const SnapshotReader& reader, const SealedSnapshot& snapshot,
                          const std::string& checkpoint_directory, const v1::Owner& owner) {
  ASSIGN_OR_RETURN(const absl::string_view payload, reader.Read(snapshot));
  const std::string directory =
      absl::StrCat(checkpoint_directory, "/", StepDirectoryName(snapshot.step, snapshot.attempt));
  const std::string path = absl::StrCat(directory, "/", ShardFileName(snapshot.rank));
  ASSIGN_OR_RETURN(const Shard shard,
                   ParseShard(payload, static_cast<int64_t>(payload.size()), path));
  if (shard.rank != snapshot.rank || shard.moment.step != snapshot.step ||
      shard.moment.attempt != snapshot.attempt) {
    return absl::DataLossError(absl::StrCat(
        path, ": the snapshot's header is of rank ", shard.rank, ", step ", shard.moment.step,
        ", attempt ", shard.moment.attempt, "; it was sealed as another one"));
  }
  RETURN_IF_ERROR(MakeStepDirectory(checkpoint_directory, directory, owner));

  // Named after the owner: a job from which the directory is taken over may still write.
  const std::string beside = absl::StrCat(path, ".", owner.job_id(), owner.log_id(), ".tmp");
  auto remove_beside = absl::MakeCleanup([&beside] { ::unlink(beside.c_str()); });
  ASSIGN_OR_RETURN(const std::string sha256, WriteAndSync(beside, payload));
  if (!reader.IsCurrent(snapshot)) {
    return absl::AbortedError(
        absl::StrCat(path, ": a rank took the memory of the snapshot while it was written"));
  }
  RETURN_IF_ERROR(CheckOwner(checkpoint_directory, owner));
  RETURN_IF_ERROR(RenamePath(beside, path));
  std::move(remove_beside).Cancel();
  RETURN_IF_ERROR(CheckOwner(checkpoint_directory, owner));

  v1::ShardFile record;
  record.set_file(ShardFileName(snapshot.rank));
  record.set_rank(snapshot.rank);
  record.set_size_bytes(snapshot.size_bytes);
  record.set_sha256(sha256);
  for (const v1::TensorSlice& slice : shard.slices) *record.add_slices() = slice;
  return base::WriteFileDurably(absl::StrCat(directory, "/", ShardRecordName(snapshot.rank)),
                                ToJson(record, JsonStyle::kOneLine));
}

absl::Status CheckNotGivenUp(const std::string& directory) {
  if (::access(directory.c_str(), F_OK) == 0 || errno != ENOENT) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("checkpoint ", directory, ": was given up"));
}

absl::Status WriteManifest(const std::string& directory, v1::Manifest manifest) {
  RETURN_IF_ERROR(CheckNotGivenUp(directory));
  manifest.set_format_version(kFormatVersion);
  manifest.clear_shards();
  for (int rank = 0; rank < job::WorldSize(manifest.spec()); ++rank) {
    ASSIGN_OR_RETURN(*manifest.add_shards(), ReadShardRecord(directory, rank));
  }
  std::vector<const TensorIndex::Slices*> slices;
  for (const v1::ShardFile& shard : manifest.shards()) slices.push_back(&shard.slices());
  const auto index = TensorIndex::Create(slices);
  const absl::Status complete = index.ok() ? index->CheckComplete() : index.status();
  if (!complete.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint ", directory, ": ", complete.message()));
  }
  RETURN_IF_ERROR(CheckOwner(directory.substr(0, directory.rfind('/')), manifest.owner()));
  return base::WriteFileDurably(absl::StrCat(directory, "/", kManifestFile),
                                ToJson(manifest, JsonStyle::kPretty));
}

bool IsSuperseded(const CheckpointId& id, const Retention& retention) {
  if (id.attempt() > retention.attempt) return false;
  bool is_older = false;
  for (const CheckpointId& kept : retention.committed) {
    if (Age(kept) == Age(id)) return false;
    is_older = is_older || Age(id) < Age(kept);
  }
  return is_older;
}

absl::Status ApplyRetention(const std::string& checkpoint_directory, const Retention& retention) {
  if (retention.committed.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckOwner(checkpoint_directory, retention.owner));
  RETURN_IF_ERROR(RemoveLeftovers(checkpoint_directory, retention.committed));
  ASSIGN_OR_RETURN(const std::vector<CheckpointId> found,
                   ListStepDirectories(checkpoint_directory));
  for (const CheckpointId& id : found) {
    if (!IsSuperseded(id, retention)) continue;
    if (IsOfAnother(PathOf(checkpoint_directory, id), retention.owner)) continue;
    RETURN_IF_ERROR(CheckOwner(checkpoint_directory, retention.owner));
    const std::string away = PathOfDeleted(checkpoint_directory, id);
    RETURN_IF_ERROR(RenamePath(PathOf(checkpoint_directory, id), away));
    RETURN_IF_ERROR(base::SyncDirectory(checkpoint_directory));
    RETURN_IF_ERROR(RemoveTree(away));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> GiveUpIncomplete(const std::string& checkpoint_directory,
                                     const CheckpointId& newest, const v1::Owner& owner) {
  RETURN_IF_ERROR(CheckOwner(checkpoint_directory, owner));
  ASSIGN_OR_RETURN(const std::vector<CheckpointId> found,
                   ListStepDirectories(checkpoint_directory));
  int given_up = 0;
  for (const CheckpointId& id : found) {
    const std::string from = PathOf(checkpoint_directory, id);
    const std::string away = PathOfDeleted(checkpoint_directory, id);
    const bool earlier =
        std::pair(id.attempt(), id.step()) < std::pair(newest.attempt(), newest.step());
    if (!earlier || HasManifest(from)) continue;
    if (const absl::Status moved = RenamePath(from, away); !moved.ok()) {
      const int error = base::ErrnoOf(moved);
      // another host moved it
      if (error == ENOENT || error == ENOTEMPTY || error == EEXIST) continue;
      return moved;
    }
    // The manifest was written after the check above. After the rename no manifest can be written.
    if (HasManifest(away)) {
      RETURN_IF_ERROR(RenamePath(away, from));
      continue;
    }
    RETURN_IF_ERROR(RemoveTree(away));
    ++given_up;
  }
  return given_up;
}

}  // namespace megascale::checkpoint
