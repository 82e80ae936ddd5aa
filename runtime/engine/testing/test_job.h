// Runs a whole job in one process for tests: every rank is an engine on a thread of its own,
// machines are only node ids, and the loader, the shared memory and the sockets between machines
// are real.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/agent.pb.h"
#include "proto/job.pb.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/device/device.h"
#include "runtime/engine/rank_engine.h"

namespace megascale::engine {

// Returns a resolved toy job on generated text. Write the text to `text_path` first: WriteTestText.
// Where a job of bytes keeps attention within documents, which no user can ask for, every space
// ends a document.
megascale::job::v1::JobSpec ToyJob(const std::string& text_path, int data, int pipeline);
std::string WriteTestText(const std::string& name);
// Sets what Llama and Qwen3 share: RMSNorm, rotary positions, SwiGLU, no biases.
void MakeLikeLlama(megascale::job::v1::ModelSpec* model);

using SnapshotMemory = std::map<int, std::unique_ptr<base::SharedMemory>>;

struct RunOptions {
  explicit RunOptions(megascale::job::v1::JobSpec job) : spec(std::move(job)) {}
  RunOptions& On(std::vector<std::string> placement) {
    nodes = std::move(placement);
    return *this;
  }
  RunOptions& StopAfter(int64_t step) {
    stop_after = step;
    return *this;
  }

  megascale::job::v1::JobSpec spec;
  std::vector<std::string> nodes;  // by rank; empty: all ranks on one node
  int64_t attempt = 1;
  megascale::agent::v1::RestorePoint restore;  // default: initial
  // Restore points of ranks that see another storage than `restore` names, by rank.
  std::map<int, megascale::agent::v1::RestorePoint> restore_of;
  // Makes the device of a rank; empty: a CPU for each.
  std::function<std::unique_ptr<device::Device>(int rank)> make_device;
  // Called, if set, on every rank's thread with what Load, or ChooseProducts, returned; a rank that
  // failed, which fails the test otherwise, ends then.
  std::function<void(int rank, const absl::StatusOr<std::string>& loaded)> on_load;
  // Called, if set, on every rank's thread before Load; `look` returns what the rank's heartbeat
  // slot shows, until the rank ends. Threads of `look`: any.
  using Look = std::function<megascale::telemetry::v1::RankStatus()>;
  std::function<void(int rank, const Look& look)> before_load;
  // As in EngineOptions. The checkpoint gets a copy of the folder's table.
  std::string job_directory;
  bool products_may_differ = false;
  // Snapshot memory by rank, made by the first run and kept for the next one, as an agent keeps it
  // from attempt to attempt. Null: of this run alone.
  SnapshotMemory* snapshots = nullptr;
  int64_t stop_after = 0;  // rank 0 raises its stop flag before this step; 0: never
  // Every rank begins its last snapshot after this step, takes one step more, and only then
  // finishes the snapshot, which the result is read from. 0: no step follows the last snapshot.
  int64_t snapshot_beside_step_after = 0;
  // Called, if set, when every rank has finished a step, before any rank begins the next.
  std::function<void()> after_step;
  // Called, if set, on the threads that load batches; outside tests they are in another process.
  std::function<void()> on_loader_thread;
  // Called, if set, on a rank's thread when a step fails; the rank then ends and stores nothing. If
  // not set, a failed step fails the test.
  std::function<void(int rank, const absl::Status& status)> on_failure;
  // Called, if set, on every rank's thread after its last snapshot.
  std::function<void(RankEngine& engine)> at_end;
};

struct RunResult {
  std::vector<std::vector<megascale::telemetry::v1::StepRecord>> records;  // by rank
  std::string
      digest;  // over all ranks' snapshots of the last step, through a checkpoint on storage
  std::string checkpoint;  // directory of the checkpoint
};

// Runs every step and a snapshot at the end; fails the running test on any error. Where the job
// sets train.eval_interval, the records have the losses on held-out text.
RunResult RunJob(const RunOptions& options);

// Tensors of the checkpoint at the end of a run, by name.
using Tensors = std::map<std::string, std::vector<double>>;
Tensors ReadTensors(const RunResult& result);

// Returns the gradient of every parameter in the first step of `spec`, summed over ranks and
// micro-batches, unclipped. Runs that step and reads from the checkpoint the optimizer's first
// moment, which after one step is (1 - beta1) times the gradient. The division adds a relative
// rounding error of one unit.
Tensors FirstGradients(megascale::job::v1::JobSpec spec);

}  // namespace megascale::engine
