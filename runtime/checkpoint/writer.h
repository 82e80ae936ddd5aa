// Puts checkpoints on storage. In DIRECTORY/step-00000100-attempt-2/ each rank's shard is
// `rank-00003.safetensors` beside `rank-00003.json` (a ShardFile with its SHA-256);
// `manifest.json`, written last, makes it a checkpoint. Every file is written beside, synced and
// renamed, so a crash anywhere leaves old, new or nothing, and everything may be repeated. One
// directory belongs to one job: attempts of two jobs would have the same names. Threads: plain
// functions. Blocking: storage. Errors: of the file system (ResourceExhausted - the disk is full),
// with the path; what was complete before stays.
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
// this returned OK. Errors: DataLoss - its checksum differs; Aborted - a newer attempt took the
// buffer: nothing was written.
absl::Status PersistShard(const SnapshotReader& reader, const SealedSnapshot& snapshot,
                          const std::string& checkpoint_directory);

// Completes `manifest` (all of it but format_version and shards; its spec says how many ranks there
// are) with the shards found in `directory` and writes it. Rewriting an equal manifest is harmless.
// Errors: FailedPrecondition - a rank's shard is missing, of another size than recorded, or some
// element of a tensor is in no shard or in two; NotFound - the directory was given up.
absl::Status WriteManifest(const std::string& directory,
                           megascale::checkpoint::v1::Manifest manifest);

// Deletes step directories, complete or not, that are older (by step, then attempt) than the newest
// of `committed` and not among them; without any committed nothing. Finishes what an interrupted
// call began.
absl::Status ApplyRetention(const std::string& checkpoint_directory,
                            const std::vector<megascale::agent::v1::CheckpointId>& committed);

// Makes room on storage that is full: gives up the step directories that have no manifest and are
// of an earlier attempt than `newest`, or of its attempt and an earlier step. Returns how many.
// Needs no agreement with other hosts: what was given up has no directory that a manifest could be
// written to. Without it, a host whose writes succeed would fill the storage with shards of steps
// of which another host, whose writes fail, has no snapshot any more, and neither would ever
// complete one.
absl::StatusOr<int> GiveUpIncomplete(const std::string& checkpoint_directory,
                                     const megascale::agent::v1::CheckpointId& newest);

}  // namespace megascale::checkpoint
