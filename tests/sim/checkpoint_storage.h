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
  };

  // The step of the checkpoint at GivenPath, which no job of the simulation wrote.
  static constexpr int64_t kGivenStep = 7;
  static std::string GivenPath();

  explicit CheckpointStorage(World* world);

  // Errors: Unavailable - storage fails now; ResourceExhausted - storage has no room for this
  // write.
  absl::Status WriteShard(const std::string& job_id, const agent::SealedSnapshot& snapshot);
  // Returns the directory's path. Errors: FailedPrecondition - a shard is missing; NotFound - the
  // checkpoint was given up.
  absl::StatusOr<std::string> WriteManifest(const std::string& job_id,
                                            const agent::CheckpointId& id, int world_size);
  // Deletes superseded checkpoints, as runtime/checkpoint/writer.h does.
  absl::Status ApplyRetention(const std::string& job_id, const checkpoint::Retention& retention);
  // Deletes incomplete checkpoints, as runtime/checkpoint/writer.h does.
  void GiveUpIncomplete(const std::string& job_id, const agent::CheckpointId& newest);
  // Changes a file of a complete checkpoint, for all that read it from now on.
  void Damage();
  bool IsDamaged(const std::string& path, int rank) const;
  // Returns the step of the rank's shard. Errors: DataLoss - the checkpoint is not complete, or the
  // shard is damaged.
  absl::StatusOr<int64_t> ReadShard(const std::string& path, int rank) const;

  // Null: there is no such directory.
  const Directory* Find(const std::string& path) const;
  static std::string PathOf(const std::string& job_id, const agent::CheckpointId& id);

 private:
  using Age = std::pair<int64_t, int64_t>;  // step, attempt
  absl::Status Writable() const;

  World& world_;
  std::map<std::string, std::map<Age, Directory>> jobs_;
};

}  // namespace megascale::sim
