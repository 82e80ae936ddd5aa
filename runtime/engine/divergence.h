// Finds where training diverged: repeats a step whose loss or gradient norm was not finite, with
// operators that check their results, and names the first layer and operator that gave a value that
// is not finite. Healthy steps run none of this code.
//
// The repeated step computes the same bits: the weights are still those that the step began with,
// the batch is kept, and operators are deterministic. Every rank does its part, one micro-batch
// after the other through all stages, forward and backward. Then the ranks compare their findings,
// so that all report the same one. Private to the engine.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/instruction_reporter.h"
#include "runtime/engine/peers/all_ranks.h"
#include "runtime/engine/stage_compute.h"
#include "runtime/layout/rank_layout.h"
#include "runtime/plan/execute/executor.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/stream/stream.h"

namespace megascale::engine {

// All borrowed.
struct DivergedStep {
  const plan::RankPlan* plan = nullptr;
  const layout::RankLayout* part = nullptr;
  const ChunkStates* chunks = nullptr;
  const GradientBuffers* gradient_buffers = nullptr;
  StageCompute* stage = nullptr;
  TensorPeers* peers = nullptr;  // null where there is one tensor rank
  ops::Ops* ops = nullptr;       // of `stream`
  device::Device* device = nullptr;
  stream::Stream* stream = nullptr;  // the compute stream
  const AllRanks* all = nullptr;
  std::function<stream::Stream*(const plan::Instruction&)> stream_of;  // of its communicator
  std::function<comm::Communicator*(const plan::Instruction&)> communicator_of;
  InstructionReporter* reporter = nullptr;
  plan::StepContext context;
  absl::Duration timeout;  // for each wait
};

// Returns `diverged` with the finding added to its message. Blocking. Requires: called on the
// compute stream's thread; no instruction of the step is still running; every rank calls it. Cost:
// about a step without overlap, and memory for its activations. If the repetition fails (a peer is
// gone, no memory), the message says so and the code stays.
absl::Status ExplainDivergence(const DivergedStep& step, const absl::Status& diverged);

}  // namespace megascale::engine
