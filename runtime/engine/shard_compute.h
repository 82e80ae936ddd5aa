// Handlers of plan::Executor for the shard's instructions on this rank: gather the parameters over
// the data-parallel group; reduce the gradients over it, after tensor ranks have summed those of
// replicated parameters; agree on norm, loss and stop flag with all ranks, group by group; step the
// optimizer's slices (ZeRO stage 1 or 2; with LAMB after an exchange of the sums behind its trust
// ratios).
// Ownership: borrows everything in its options, which must outlive it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/job.pb.h"
#include "runtime/comm/communicator.h"
#include "runtime/engine/chunk_state.h"
#include "runtime/engine/rank_engine.h"
#include "runtime/engine/stage_compute.h"
#include "runtime/plan/execute/executor.h"

namespace megascale::engine {

// Single numbers of a step in the device's memory, F64.
struct ShardNumbers {
  // Sets the sizes of all vectors.
  ShardNumbers(const plan::Mesh& mesh, const ChunkStates& chunks);
  std::vector<tensor::Vector*> spaces();

  // [members, ops::kNumRankNumbers], as gathered in the tensor, then the data, then the pipeline
  // group: what each member contributes is the sum over its members of the group before.
  tensor::Vector tensor_norms, data_norms, pipeline_norms;
  tensor::Vector step;                     // [ops::kNumStepNumbers]
  tensor::Vector squares;                  // [chunks]: sums of squares of their gradients
  tensor::Vector losses;                   // [ops::kNumRankNumbers]: those of an evaluation
  std::vector<tensor::Vector> trust_sums;  // by chunk: the sums of every part, in part order
};

struct ShardOptions {
  const megascale::job::v1::JobSpec* spec = nullptr;  // resolved
  const plan::RankPlan* plan = nullptr;
  const ChunkStates* chunks = nullptr;
  const GradientBuffers* gradient_buffers = nullptr;
  // For sums of gradients, on the shard's own stream while passes use the compute threads.
  ops::Ops* ops = nullptr;
  ops::Ops* compute_ops = nullptr;  // for what runs on the compute threads
  // Runs work on the rank's compute threads, and waits for it. The optimizer's calls run there:
  // norm, update and step depend on every pass of the step, so these threads are idle.
  // `from`: the stream whose handler calls it.
  std::function<void(plan::StreamKind from, absl::FunctionRef<void()>)> run_on_compute_threads;
  // Makes work that is issued on the compute threads from now on wait for the copy of the state
  // that a snapshot takes. Called there, before work that changes the state.
  std::function<void()> await_snapshot;
  std::function<stream::Stream*(plan::StreamKind)> stream_of;
  const StageCompute* stage = nullptr;  // its loss is reported
  // Memory in which tensor ranks sum a bucket's replicated gradients, packed, F; sized for the
  // bucket with the most.
  tensor::Vector replicated;
  tensor::Vector head_gradient;  // see TiedEnds
  ShardNumbers numbers;
  device::Device* device = nullptr;
  absl::Duration timeout;  // for each collective
};

class ShardCompute {
 public:
  // Errors: ResourceExhausted - no pinned memory.
  static absl::StatusOr<std::unique_ptr<ShardCompute>> Create(const ShardOptions& options);

  // Returns the handlers of the shard's instructions, which call the methods below.
  plan::HandlerMap Handlers(const CommunicatorOf& communicator_of);

  // Adds the gradient of the head's use of the embedding to that of the embedding.
  absl::Status AddHeadGradient(const plan::Instruction& instruction);
  absl::Status SumReplicated(const plan::Instruction& instruction,
                             comm::Communicator* communicator);
  // Reduce-scatters a bucket's gradients. With ZeRO stage 2 adds the result to this rank's shard.
  absl::Status ReduceGradients(const plan::Instruction& instruction,
                               comm::Communicator* communicator);
  // Exchange sum of squares, loss and stop flag, and add them up: over the tensor group, if there
  // is one, then over the data group, then over the pipeline group. ReduceNorm makes the numbers of
  // the step from the sums. If loss or norm is not finite, the rest of the step changes no weights.
  absl::Status GatherTensorNorms(const plan::Instruction& instruction,
                                 comm::Communicator* communicator);
  absl::Status GatherDataNorms(const plan::Instruction& instruction,
                               comm::Communicator* communicator);
  absl::Status ReduceNorm(const plan::Instruction& instruction, const plan::StepContext& context,
                          comm::Communicator* communicator);
  // With trust ratios (LAMB): computes the update that OptimizerStep then scales.
  absl::Status OptimizerUpdate(const plan::Instruction& instruction);
  absl::Status GatherTensorTrustSums(const plan::Instruction& instruction,
                                     comm::Communicator* communicator);
  absl::Status GatherTrustSums(const plan::Instruction& instruction,
                               comm::Communicator* communicator);
  absl::Status OptimizerStep(const plan::Instruction& instruction);
  absl::Status GatherParameters(const plan::Instruction& instruction,
                                comm::Communicator* communicator);
  // The same for an evaluation. Later batches find the parameters that the first one gathered.
  absl::Status GatherForEvaluation(const plan::Instruction& instruction,
                                   const plan::StepContext& context,
                                   comm::Communicator* communicator);
  // Adds up the losses of a batch of windows, and their numbers, over the pipeline group, after
  // GatherTensorNorms and GatherDataNorms have added up those of each stage.
  absl::Status GatherLosses(const plan::Instruction& instruction, comm::Communicator* communicator);
  // Writes this rank's shards of the weights from the master weights, after a start or a restore.
  // The next step gathers the other shards. Requires: called on the compute stream's thread.
  void PublishParameters();

  void RaiseStop(StopFlag flag);
  // Returns the result of the step that has just ended. Requires: no instruction of it is running.
  // Errors: OutOfRange - loss or gradient norm is not finite; every rank gets the same error.
  absl::StatusOr<StepResult> ResultOf(const plan::StepContext& context);

  // The loss of a batch of windows, summed over all ranks in the order of the norm.
  struct BatchLoss {
    double nats = 0;
    int64_t num_windows = 0;
  };
  // Returns the loss of the batch that has just ended. Requires: no instruction of it is running.
  BatchLoss LossOfWindows() const;

 private:
  size_t IndexOf(const plan::Instruction& instruction) const {
    return static_cast<size_t>(options_.plan->IndexOfChunk(instruction.id.chunk()));
  }
  const ChunkState& ChunkOf(const plan::Instruction& instruction) const {
    return (*options_.chunks)[IndexOf(instruction)];
  }
  static size_t BucketOf(const plan::Instruction& instruction) {
    return static_cast<size_t>(instruction.id.bucket());
  }
  plan::Coordinate coordinate() const {
    return options_.plan->mesh.CoordinateOf(options_.plan->rank);
  }
  optim::StepArgs StepArgsOf(const plan::Instruction& instruction) const;
  explicit ShardCompute(const ShardOptions& options) : options_(options) {}
  // Writes what this rank contributes to `mine`, [ops::kNumRankNumbers]: to the norms, or in an
  // evaluation to the losses.
  void Contribute(const plan::Instruction& instruction, const tensor::Vector& mine);
  void ContributeNorm(const plan::Instruction& instruction, const tensor::Vector& mine);
  void ContributeLosses(const plan::Instruction& instruction, const tensor::Vector& mine);
  // Gathers `numbers` from all ranks of the communicator; each contributes an equal part in rank
  // order.
  absl::Status AllGather(const plan::Instruction& instruction, comm::Communicator* communicator,
                         const tensor::Vector& numbers) const;

  const ShardOptions options_;
  std::atomic<uint8_t> stop_ = 0;
  // What goes to the device at the beginning of a step's end, and what comes back; pinned.
  std::unique_ptr<device::Memory> pinned_;
  struct Pinned {
    std::array<double, 2> rate_and_step;  // in the order of ops::StepNumber
    double stop;
    std::array<double, ops::kNumStepNumbers> step;
    double num_windows;  // of this rank, in an evaluation
    std::array<double, ops::kNumRankNumbers> losses;
  };
  Pinned& pinned() const { return *static_cast<Pinned*>(pinned_->data()); }
};

}  // namespace megascale::engine
