// A host process: preflight, shards, manifests and retention on the shared storage, with its
// retries, as actors/checkpoint_actor does them. It loads no data.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "proto/link.pb.h"
#include "proto/telemetry.pb.h"
#include "runtime/base/process/shared_memory.h"
#include "tests/sim/checkpoint_storage.h"
#include "tests/sim/world.h"

namespace megascale::sim {

class HostProcess : public std::enable_shared_from_this<HostProcess> {
 public:
  struct Options {
    ProcessName name;
    agent::DesiredJob job;
    bool preflight_only = false;
    int pid = 0;
    std::map<int, std::shared_ptr<base::SharedMemory>> snapshots;  // by rank
    std::function<void(const link::v1::FromHost&)> report;
    std::function<void(int status)> exit;
  };

  HostProcess(World* world, CheckpointStorage* storage, Options options);

  void Start();
  void Send(const link::v1::ToHost& message);
  void Hang() { hung_since_ = world_.timeline.now(); }
  void Die() { alive_ = false; }
  megascale::telemetry::v1::RankStatus Heartbeat() const;

  const ProcessName& name() const { return options_.name; }
  bool alive() const { return alive_; }
  bool runs() const { return alive_ && !hung_since_.has_value(); }

 private:
  void RunPreflight();
  void NoteStorage();
  checkpoint::v1::Owner Owner() const;
  // Ends the process with this failure.
  void Fail(telemetry::FailureClass failure_class, const absl::Status& why);
  void After(absl::Duration delay, std::function<void()> run);
  void WorkLater(absl::Duration delay);
  void Work();
  // Carries out a message. Returns false if it must be tried again.
  bool Carry(const link::v1::ToHost& message);
  bool OnPersist(const link::v1::Persist& persist);
  bool OnFinalize(const agent::CheckpointId& id);
  void OnRetain(const link::v1::Retain& retain);
  void SetStorageFails(bool fails);
  // Handles a refused write: returns true if storage was full and room was made.
  bool MakesRoom(const absl::Status& status, int64_t attempt, int64_t step);
  void SayStorageError(const absl::Status& status);

  World& world_;
  CheckpointStorage& storage_;
  const Options options_;
  std::deque<link::v1::ToHost> inbox_;
  int64_t newest_committed_ = -1;
  bool works_ = false;  // a call of Work is scheduled
  bool alive_ = true;
  std::optional<absl::Duration> hung_since_;
  std::optional<absl::Duration> away_since_;  // the preflight waits for storage
  int64_t num_waits_ = 0;
};

}  // namespace megascale::sim
