// Runs a whole job in one process for tests: every rank is an engine on a thread of its own,
// machines are node ids, and the loader, the shared memory and the sockets between machines are the
// real ones.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "proto/agent.pb.h"
#include "proto/job.pb.h"
#include "runtime/engine/rank_engine.h"

namespace megascale::engine {

// A resolved toy job on generated text; write it to `text_path` first with WriteTestText.
megascale::job::v1::JobSpec ToyJob(const std::string& text_path, int data, int pipeline);
std::string WriteTestText(const std::string& name);

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
  std::vector<std::string> nodes;  // of every rank; empty: all on one
  int64_t attempt = 1;
  megascale::agent::v1::RestorePoint restore;  // default: initial
  int64_t stop_after = 0;  // rank 0 raises its stop flag before this step; 0: never
  // Called, if set, when a step is over on every rank, before one begins the next.
  std::function<void()> after_step;
  // Called, if set, on the threads that load batches: outside of tests they are in another process.
  std::function<void()> on_loader_thread;
  // Called, if set, on every rank's thread when a step fails, which fails the test otherwise; the
  // rank ends then, and nothing is stored.
  std::function<void(int rank, const absl::Status& status)> on_failure;
  // Called, if set, on every rank's thread after its last snapshot.
  std::function<void(RankEngine& engine)> at_end;
};

struct RunResult {
  std::vector<std::vector<megascale::telemetry::v1::StepRecord>> records;  // by rank
  std::string
      digest;  // over all ranks' snapshots of the last step, through a checkpoint on storage
  std::string checkpoint;  // its directory
};

// Runs every step and a snapshot at the end; fails the running test on any error.
RunResult RunJob(const RunOptions& options);

// What the checkpoint at the end of a run has, by name.
using Tensors = std::map<std::string, std::vector<double>>;
Tensors ReadTensors(const RunResult& result);

// The gradient of every parameter in the first step of `spec`, summed over ranks and micro-batches,
// unclipped: runs that step and reads the optimizer's first moments, then (1 - beta1) times the
// gradient, from the checkpoint. The division adds a relative rounding error of one unit.
Tensors FirstGradients(megascale::job::v1::JobSpec spec);

}  // namespace megascale::engine
