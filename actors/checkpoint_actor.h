// The checkpoint actors. In a worker, stage one: copies the shard's state into a free buffer of the
// snapshot region that the agent holds, and seals it. In a host, stage two: the persister writes
// sealed snapshots to storage in the background. Both block (on a free buffer, on storage), so they
// run detached. Source: MegaScale section 4.4; DESIGN sections 4 and 6.
//
// Storage that fails (a full disk, a server that is away) does not stop training: the persister
// says so in the snapshot memory, so that workers overwrite what could not be stored, reports it,
// and tries again, after 1 s at first and 30 s at last. When it has lasted too long the driver
// decides.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
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
    // Its own: does what could not be done before.
    caf::reacts_to<RetryStorage>,
    // Deletes what the driver's commits made superfluous; reported as Retained, after a
    // StorageError where it failed. The message is a serialized link.v1.Retain.
    caf::reacts_to<std::string>>;

struct PersisterOptions {
  megascale::link::v1::HostAssignment assignment;
  std::map<int, std::shared_ptr<base::SharedMemory>> snapshots;  // by rank
  std::function<void(const megascale::link::v1::FromHost&)> report;
};

struct PersisterState {
  using Task = std::variant<PersistSnapshot, WriteCheckpointManifest>;

  PersisterOptions options;
  std::deque<Task> waiting;      // to be done, in order
  bool retry_scheduled = false;  // until then nothing is tried

  // Does each task that waits, once. True: storage failed, and some are left; try again after
  // RetryDelay.
  bool WorkOff();
  std::chrono::seconds RetryDelay() const;
  void OnRetain(const std::string& serialized);

 private:
  // Once more after incomplete checkpoints were given up, where storage is full.
  template <typename Message>
  absl::Status DoWithRoom(const Message& message);
  absl::Status Do(const PersistSnapshot& message);
  absl::Status Do(const WriteCheckpointManifest& message);
  void ReportStorageError(const absl::Status& status) const;
  void SetStorageFails(bool fails) const;

  int failures_ = 0;  // of WorkOff, in a row
};

PersisterActor::behavior_type Persister(PersisterActor::stateful_pointer<PersisterState> self,
                                        PersisterOptions options);

}  // namespace megascale::actors
