// The checkpoint actors. Stage one, in a worker, copies the shard's state into a free buffer of the
// snapshot region that the agent holds, and seals it. Stage two, the persister in a host, writes
// sealed snapshots to storage in the background. Both block (on a free buffer, on storage), so they
// run detached. Source: MegaScale section 4.4.
//
// Storage that fails (a full disk, an unreachable server) does not stop training. The persister
// marks the failure in the snapshot memory, so that workers overwrite snapshots that could not be
// stored. It reports the failure and tries again, first after 1 s, later after up to 30 s. The
// driver decides when the failure has lasted too long.
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
#include "runtime/base/process/shared_memory.h"
#include "runtime/data/dataset/dataset.h"

namespace megascale::actors {

//   Parent: worker. Receives: TakeSnapshot. Sends: SnapshotTaken to the worker.
using CheckpointActor = caf::typed_actor<
    // Copies and seals a snapshot; answered by SnapshotTaken within the progress timeout.
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
//   the results to the agent, through the link. Begins by removing the preflight's nonce.
using PersisterActor = caf::typed_actor<
    // Writes one rank's shard; reported as ShardPersisted or StorageError.
    caf::reacts_to<PersistSnapshot>,
    // Writes the manifest of a complete checkpoint; reported as StoredManifest or StorageError.
    caf::reacts_to<WriteCheckpointManifest>,
    // Sent by itself: tries the failed tasks again.
    caf::reacts_to<RetryStorage>,
    // Deletes the checkpoints that the driver's commits made superfluous; reported as Retained. If
    // the deletion fails, a StorageError comes before Retained. The message is a serialized
    // link.v1.Retain.
    caf::reacts_to<std::string>>;

struct PersisterOptions {
  megascale::link::v1::HostAssignment assignment;
  std::map<int, std::shared_ptr<base::SharedMemory>> snapshots;  // by rank
  std::function<void(const megascale::link::v1::FromHost&)> report;
  // Ends the process: the directory belongs to another job now, which keeps this one from storing
  // anything there ever again.
  std::function<void(const absl::Status& why)> lose;
  std::string numerics;  // of the ranks' device (device::Description)
  // Has the job's tokenizer, of which every checkpoint keeps a copy; null: bytes are tokens.
  std::shared_ptr<const data::Dataset> dataset;
};

struct PersisterState {
  using Task = std::variant<PersistSnapshot, WriteCheckpointManifest>;

  PersisterOptions options;
  std::deque<Task> waiting;      // tasks to do, in order
  bool retry_scheduled = false;  // while true, tasks wait for RetryStorage

  // Tries each waiting task once. Returns true if storage failed and tasks are left: try again
  // after RetryDelay.
  bool WorkOff();
  std::chrono::seconds RetryDelay() const;
  void OnRetain(const std::string& serialized);

 private:
  // Does the task. If storage is full, deletes incomplete checkpoints and tries once more.
  template <typename Message>
  absl::Status DoWithRoom(const Message& message);
  absl::Status Do(const PersistSnapshot& message);
  absl::Status Do(const WriteCheckpointManifest& message);
  void ReportStorageError(const absl::Status& status) const;
  void SetStorageFails(bool fails) const;

  int failures_ = 0;  // failed WorkOff calls in a row
};

PersisterActor::behavior_type Persister(PersisterActor::stateful_pointer<PersisterState> self,
                                        PersisterOptions options);

}  // namespace megascale::actors
