// The checkpoint storage that all machines share: directories of shards and manifests, as
// runtime/checkpoint writes them, with their origin, for the checkers.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/checkpoint/writer.h"
#include "tests/sim/world.h"

namespace megascale::sim {

class CheckpointStorage {
 public:
  struct Directory {
    std::map<int, std::pair<int64_t, int64_t>> shards;  // rank -> (attempt, step) of its content
    bool complete = false;                              // its manifest is written
    std::set<int> damaged;                              // ranks whose files were changed
    checkpoint::v1::Owner owner;                        // of its manifest
  };

  // The step of the checkpoint at GivenPath, which no job of the simulation wrote.
  static constexpr int64_t kGivenStep = 7;
  static std::string GivenPath();

  explicit CheckpointStorage(World* world);

  bool IsAway() const;
  // Makes the job the owner of its directory, as runtime/checkpoint/owner.h does. Errors:
  // Unavailable - storage is away; PermissionDenied - the directory belongs to another job.
  absl::Status Claim(const agent::DesiredJob& job);
  // A job of the same name, of another driver's log, takes a directory over, and writes
  // checkpoints under the names of those that are there. Returns the job's id; empty: there is no
  // directory.
  std::string TakeOver();
  bool IsTaken(const std::string& job_id) const { return taken_.count(job_id) > 0; }

  // The following act for the job with this owner. Errors: PermissionDenied - the directory belongs
  // to another job; Unavailable - storage fails now, or is away; ResourceExhausted - storage has no
  // room for this write.
  absl::Status WriteShard(const checkpoint::v1::Owner& owner, const std::string& job_id,
                          const agent::SealedSnapshot& snapshot);
  // Returns the directory's path. Errors: FailedPrecondition - a shard is missing; NotFound - the
  // checkpoint was given up.
  absl::StatusOr<std::string> WriteManifest(const checkpoint::v1::Owner& owner,
                                            const std::string& job_id,
                                            const agent::CheckpointId& id, int world_size);
  // Deletes superseded checkpoints, as runtime/checkpoint/writer.h does.
  absl::Status ApplyRetention(const std::string& job_id, const checkpoint::Retention& retention);
  // Deletes incomplete checkpoints, as runtime/checkpoint/writer.h does.
  void GiveUpIncomplete(const checkpoint::v1::Owner& owner, const std::string& job_id,
                        const agent::CheckpointId& newest);
  // Changes a file of a complete checkpoint, for all that read it from now on.
  void Damage();
  bool IsDamaged(const std::string& path, int rank) const;
  // Returns the step of the rank's shard. Errors: DataLoss - the checkpoint is not complete, is
  // another job's, or the shard is damaged.
  absl::StatusOr<int64_t> ReadShard(const agent::RestorePoint& restore, int rank) const;

  // Null: there is no such directory.
  const Directory* Find(const std::string& path) const;
  static std::string PathOf(const std::string& job_id, const agent::CheckpointId& id);

 private:
  using Age = std::pair<int64_t, int64_t>;  // step, attempt
  absl::Status Writable() const;
  // As checkpoint::CheckOwner; and OthersAreLeftAlone: whoever may change a directory owns it.
  absl::Status CheckOwner(const checkpoint::v1::Owner& owner, const std::string& job_id) const;

  World& world_;
  std::map<std::string, checkpoint::v1::Owner> owners_;  // of the files, by job
  std::set<std::string> taken_;                          // jobs whose directory was taken over
  std::map<std::string, std::map<Age, Directory>> jobs_;
};

}  // namespace megascale::sim
