// The checkpoint storage that all machines share: directories of shards and manifests, as
// runtime/checkpoint writes them, with what a checker wants to know of their origin.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/sim/world.h"

namespace megascale::sim {

class CheckpointStorage {
 public:
  struct Directory {
    std::map<int, std::pair<int64_t, int64_t>> shards;  // rank -> (attempt, step) of its content
    bool complete = false;                              // its manifest is written
  };

  explicit CheckpointStorage(World* world) : world_(*world) {}

  // Unavailable while storage fails. ResourceExhausted: it is full, for this write.
  absl::Status WriteShard(const std::string& job_id, const agent::SealedSnapshot& snapshot);
  // The directory's path. FailedPrecondition: a shard is missing. NotFound: it was given up.
  absl::StatusOr<std::string> WriteManifest(const std::string& job_id,
                                            const agent::CheckpointId& id, int world_size);
  // As runtime/checkpoint/writer.h: deletes what is older than the newest of `committed`.
  absl::Status ApplyRetention(const std::string& job_id,
                              const std::vector<agent::CheckpointId>& committed);
  // As runtime/checkpoint/writer.h.
  void GiveUpIncomplete(const std::string& job_id, const agent::CheckpointId& newest);
  // The step that is there for the rank. DataLoss: it is not complete.
  absl::StatusOr<int64_t> ReadShard(const std::string& path, int rank) const;

  // Null when there is none.
  const Directory* Find(const std::string& path) const;
  static std::string PathOf(const std::string& job_id, const agent::CheckpointId& id);

 private:
  using Age = std::pair<int64_t, int64_t>;  // step, attempt
  absl::Status Writable() const;

  World& world_;
  std::map<std::string, std::map<Age, Directory>> jobs_;
};

}  // namespace megascale::sim
