// What the shard's instructions do on this rank: gather the parameters over the data-parallel
// group, reduce the gradients over it (after tensor ranks have summed those of what each of them
// has a copy of), agree on norm, loss and stop flag over the world, step the
// optimizer's slices (ZeRO stage 1 or 2; with LAMB after an exchange of what its trust ratios are
// made of). Handlers for plan::Executor. Ownership: borrows everything in its options, which
// outlives it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "runtime/comm/communicator.h"
#include "runtime/engine/rank_chunk.h"
#include "runtime/engine/rank_engine.h"
#include "runtime/engine/stage_compute.h"
#include "runtime/plan/executor.h"

namespace megascale::engine {

struct ShardOptions {
  const megascale::job::v1::JobSpec* spec = nullptr;  // resolved
  const plan::RankPlan* plan = nullptr;
  const RankChunks* chunks = nullptr;
  const GradientBuffers* gradient_buffers = nullptr;
  ops::Ops* ops = nullptr;              // of the shard's streams, which compute by turns
  const StageCompute* stage = nullptr;  // whose loss is reported
  // Of tensor ranks: memory for the sum of replicated gradients. [most of a bucket] F.
  tensor::Vector replicated;
  absl::Duration timeout;  // of each collective
};

class ShardCompute {
 public:
  explicit ShardCompute(const ShardOptions& options);

  absl::Status SumReplicated(const plan::Instruction& instruction,
                             comm::Communicator* communicator);
  // Where gradients are sharded, adds what it reduces to this rank's shard.
  absl::Status ReduceGradients(const plan::Instruction& instruction,
                               comm::Communicator* communicator);
  // Errors: OutOfRange - loss or gradient norm is not finite, on every rank alike.
  absl::Status ReduceNorm(const plan::Instruction& instruction, const plan::StepContext& context,
                          comm::Communicator* communicator);
  // Where the optimizer has trust ratios: what comes before its step.
  absl::Status OptimizerUpdate(const plan::Instruction& instruction,
                               const plan::StepContext& context);
  absl::Status GatherTrustSums(const plan::Instruction& instruction,
                               comm::Communicator* communicator);
  absl::Status OptimizerStep(const plan::Instruction& instruction,
                             const plan::StepContext& context);
  absl::Status GatherParameters(const plan::Instruction& instruction,
                                comm::Communicator* communicator);
  // After a start or a restore: this rank's shards of the weights from the master weights. Steps
  // gather them.
  void PublishParameters();

  void RaiseStop(StopFlag flag);
  const StepResult& result() const { return result_; }

 private:
  size_t IndexOf(const plan::Instruction& instruction) const {
    return static_cast<size_t>(options_.plan->IndexOfChunk(instruction.id.chunk()));
  }
  const RankChunk& ChunkOf(const plan::Instruction& instruction) const {
    return (*options_.chunks)[IndexOf(instruction)];
  }
  static size_t BucketOf(const plan::Instruction& instruction) {
    return static_cast<size_t>(instruction.id.bucket());
  }
  optim::StepArgs StepArgsOf(const plan::Instruction& instruction,
                             const plan::StepContext& context) const;
  // Completes `numbers`, whose equal parts belong to the ranks of the communicator.
  absl::Status AllGather(const plan::Instruction& instruction, comm::Communicator* communicator,
                         absl::Span<double> numbers) const;

  const ShardOptions options_;
  std::atomic<uint8_t> stop_ = 0;
  std::vector<double> norms_;                    // of every rank, as gathered
  double sum_of_squares_ = 0;                    // of the whole model
  std::vector<std::vector<double>> trust_sums_;  // by chunk: of every part, in their order
  StepResult result_;
};

}  // namespace megascale::engine
