// Writes checkpoints to storage. In DIRECTORY/step-00000100-attempt-2/ each rank's shard is
// `rank-00003.safetensors`, next to `rank-00003.json` (a ShardFile with its SHA-256).
// `manifest.json`, written last, completes the checkpoint. Every file is written under a temporary
// name, synced and renamed, so a crash leaves the old file, the new one or none, and every call may
// be repeated. A directory belongs to one job (owner.h), since attempts of two jobs would have the
// same names: every call checks its owner right before it changes something. Threads: plain
// functions. Blocking: storage. Errors: those of CheckOwner; those of the file system
// (ResourceExhausted - the disk is full), with the path. An error leaves checkpoints intact that
// are already complete.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/agent.pb.h"
#include "proto/checkpoint.pb.h"
#include "runtime/checkpoint/snapshot.h"

namespace megascale::checkpoint {

// Writes a sealed snapshot as the shard of its rank. Does not mark it as persisted: do that when
// this returned OK. Errors: DataLoss - its checksum differs; Aborted - a rank took the
// buffer. After either error no shard was written.
absl::Status PersistShard(const SnapshotReader& reader, const SealedSnapshot& snapshot,
                          const std::string& checkpoint_directory,
                          const megascale::checkpoint::v1::Owner& owner = {});

// Returns NotFound if the directory of a checkpoint is missing, because GiveUpIncomplete removed
// it. This status carries no errno, unlike an error of the file system. Call this before writing
// into the directory.
absl::Status CheckNotGivenUp(const std::string& directory);

// Adds format_version and the shards found in `directory` to `manifest`, and writes it. All other
// fields must be set; the spec says how many ranks there are. Rewriting an equal manifest is
// harmless. Errors: FailedPrecondition - a rank's shard is missing or differs from its recorded
// size, or an element of a tensor is in no shard, or in two shards of one replica; else as
// CheckNotGivenUp.
absl::Status WriteManifest(const std::string& directory,
                           megascale::checkpoint::v1::Manifest manifest);

// The checkpoints that a host was told to keep, and the attempt in which it was told.
struct Retention {
  std::vector<megascale::agent::v1::CheckpointId> committed;
  int64_t attempt = 0;
  megascale::checkpoint::v1::Owner owner = {};
};

// Returns true if a checkpoint, complete or not, may be deleted: it is older (by step, then
// attempt) than the newest of `committed`, not in `committed`, and not of a later attempt than
// `attempt`. Reason for the attempt: a host that the driver has given up may still carry out its
// newest order, at any time. By then the job may have gone back to an older step, and later
// attempts may have committed checkpoints that this host does not know.
bool IsSuperseded(const megascale::agent::v1::CheckpointId& id, const Retention& retention);

// Deletes the superseded step directories. Deletes nothing if `committed` is empty. Finishes what
// an interrupted call began.
absl::Status ApplyRetention(const std::string& checkpoint_directory, const Retention& retention);

// Makes room on storage that is full: deletes step directories that have no manifest and are older
// than `newest` (by attempt, then by step). Returns how many. Needs no agreement with other hosts,
// because a deleted directory cannot get a manifest any more. Reason: suppose that one host can
// write and another host cannot. The first would fill the storage with shards of steps whose
// snapshots the second no longer has, so no checkpoint would ever be complete.
absl::StatusOr<int> GiveUpIncomplete(const std::string& checkpoint_directory,
                                     const megascale::agent::v1::CheckpointId& newest,
                                     const megascale::checkpoint::v1::Owner& owner = {});

}  // namespace megascale::checkpoint
