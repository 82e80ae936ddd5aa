// The checkpoint actors. In a worker, stage one: copies the shard's state into a free buffer of the
// snapshot region that the agent holds, and seals it. In a host, stage two: the persister writes
// sealed snapshots to storage in the background. Both block (on a free buffer, on storage), so they
// run detached. Source: MegaScale section 4.4; DESIGN sections 4 and 6.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "actors/device_actor.h"
#include "proto/link.pb.h"
#include "runtime/base/shared_memory.h"

namespace megascale::actors {

//   Parent: worker. Receives: TakeSnapshot. Sends: SnapshotTaken to the worker.
using CheckpointActor = caf::typed_actor<
    // Copies and seals; answered by SnapshotTaken within the progress timeout.
    caf::reacts_to<TakeSnapshot>>;

struct CheckpointState {
  std::shared_ptr<engine::RankEngine> engine;
  WorkerEvents worker;

  void OnTakeSnapshot(const TakeSnapshot& message);
};

CheckpointActor::behavior_type Checkpoint(CheckpointActor::stateful_pointer<CheckpointState> self,
                                          std::shared_ptr<engine::RankEngine> engine,
                                          WorkerEvents worker);

//   Parent: host. Receives: PersistSnapshot, WriteCheckpointManifest, Retain (from the link). Sends
//   what came of it to the agent, through the link.
using PersisterActor = caf::typed_actor<
    // Writes one rank's shard; reported as ShardPersisted or StorageError.
    caf::reacts_to<PersistSnapshot>,
    // Writes the manifest of a complete checkpoint; reported as StoredManifest or StorageError.
    caf::reacts_to<WriteCheckpointManifest>,
    // Deletes what the driver's commits made superfluous; reported as Retained, after a
    // StorageError where it failed. The message is a serialized link.v1.Retain.
    caf::reacts_to<std::string>>;

struct PersisterOptions {
  megascale::link::v1::HostAssignment assignment;
  std::map<int, std::shared_ptr<base::SharedMemory>> snapshots;  // by rank
  std::function<void(const megascale::link::v1::FromHost&)> report;
};

struct PersisterState {
  PersisterOptions options;

  // False: storage failed in a way that may pass; try again later.
  bool OnPersist(const PersistSnapshot& message);
  bool OnWriteManifest(const WriteCheckpointManifest& message);
  void OnRetain(const std::string& serialized);

 private:
  // True when it is worth trying again.
  bool ReportStorageError(const absl::Status& status);
};

PersisterActor::behavior_type Persister(PersisterActor::stateful_pointer<PersisterState> self,
                                        PersisterOptions options);

}  // namespace megascale::actors
