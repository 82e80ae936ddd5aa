// What the shard's instructions do on this rank: reduce the gradients over the data-parallel group,
// agree on norm, loss and stop flag over the world, step the optimizer's slice, gather the
// parameters (ZeRO stage 1). Handlers for plan::Executor. Ownership: borrows everything in its
// options, which outlives it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/job.pb.h"
#include "runtime/comm/communicator.h"
#include "runtime/engine/rank_engine.h"
#include "runtime/engine/stage_compute.h"
#include "runtime/optim/sharded_adamw.h"
#include "runtime/plan/executor.h"

namespace megascale::engine {

struct ShardOptions {
  const megascale::job::v1::JobSpec* spec = nullptr;  // resolved
  optim::ShardedAdamW* optimizer = nullptr;
  const StageCompute* stage = nullptr;  // whose loss is reported
  tensor::Vector weights;               // compute, padded to equal shards
  tensor::Vector gradients;             // F, padded alike
  absl::Duration timeout;               // of each collective
};

class ShardCompute {
 public:
  explicit ShardCompute(const ShardOptions& options) : options_(options) {}

  absl::Status ReduceGradients(const plan::Instruction& instruction,
                               comm::Communicator* communicator);
  // Errors: OutOfRange - loss or gradient norm is not finite, on every rank alike.
  absl::Status ReduceNorm(const plan::Instruction& instruction, const plan::StepContext& context,
                          comm::Communicator* communicator);
  absl::Status OptimizerStep(const plan::StepContext& context);
  absl::Status GatherParameters(const plan::Instruction& instruction,
                                comm::Communicator* communicator);
  // After a restore: weights from the master copy, gathered.
  absl::Status PublishParameters(comm::Communicator* communicator);

  void RaiseStop(StopFlag flag);
  const StepResult& result() const { return result_; }

 private:
  tensor::Vector ShardOf(const tensor::Vector& flat) const;

  const ShardOptions options_;
  std::atomic<uint8_t> stop_ = 0;
  std::vector<double> norms_;  // of every rank, as gathered
  double sum_of_squares_ = 0;  // of the whole model
  StepResult result_;
};

}  // namespace megascale::engine
