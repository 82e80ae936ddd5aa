// Where training diverged: does a step again whose loss or gradient norm was not finite, with
// operators that look at what they compute, and names the first layer and operator that gave a
// value that is not finite. Nothing of it runs in healthy steps.
//
// The weights are still those that the step began with, the batch is kept, operators give the same
// bits again: so what is found is what happened. Every rank does its part, one micro-batch after
// the other through all stages, forward and backward; then the ranks compare, so that all say the
// same. Private to the engine.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "runtime/engine/chunks_of_rank.h"
#include "runtime/engine/doing.h"
#include "runtime/engine/stage_compute.h"
#include "runtime/plan/executor.h"
#include "runtime/plan/step_plan.h"

namespace megascale::engine {

// All borrowed.
struct DivergedStep {
  const plan::RankPlan* plan = nullptr;
  const ChunksOfRank* part = nullptr;
  const RankChunks* chunks = nullptr;
  const GradientBuffers* gradient_buffers = nullptr;
  StageCompute* stage = nullptr;
  TensorPeers* peers = nullptr;  // null where there is one tensor rank
  ops::Ops* ops = nullptr;
  std::function<comm::Communicator*(const plan::Instruction&)> communicator_of;
  Doing* doing = nullptr;
  plan::StepContext context;
  absl::Duration timeout;  // of each wait
};

// `diverged` with what was found. Blocking. Requires: no instruction of the step runs any more;
// every rank calls it. Cost: about a step without overlap, and memory for its activations. Where
// that fails, because a peer is gone or there is no memory, the message says so and the code stays.
absl::Status ExplainDivergence(const DivergedStep& step, const absl::Status& diverged);

}  // namespace megascale::engine
