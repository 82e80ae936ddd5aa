// What the stage's instructions do on this rank: load the batch, forward, backward, and the
// transfers between pipeline stages. Handlers for plan::Executor; each runs on the stream that the
// plan names, ordered by the plan alone. Ownership: borrows everything in its options, which
// outlives it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/job.pb.h"
#include "runtime/base/shared_memory.h"
#include "runtime/comm/communicator.h"
#include "runtime/data/batch_ring.h"
#include "runtime/engine/rank_chunk.h"
#include "runtime/engine/tensor_peers.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/plan/executor.h"
#include "runtime/plan/step_plan.h"

namespace megascale::engine {

struct StageOptions {
  const megascale::job::v1::JobSpec* spec = nullptr;  // resolved
  const plan::RankPlan* plan = nullptr;
  const RankChunks* chunks = nullptr;
  const GradientBuffers* gradient_buffers = nullptr;
  // Where gradients are sharded: between two pieces of a pass, what the one made of the other's
  // bucket; F.
  tensor::Vector carried;
  ops::Ops* ops = nullptr;                   // of the compute stream
  TensorPeers* peers = nullptr;              // of its passes; null where there is one tensor rank
  base::SharedMemory* batch_ring = nullptr;  // null where the rank reads no batches
  int batch_reader = 0;
  absl::Duration timeout;  // of each wait
};

class StageCompute {
 public:
  // Errors: InvalidArgument - the ring was made for another job.
  static absl::StatusOr<std::unique_ptr<StageCompute>> Create(const StageOptions& options);

  absl::Status LoadBatch(const plan::StepContext& context);
  // The parts of a pass, over `communicator` where tensor ranks share them. Errors: of its calls.
  absl::Status Forward(const plan::Instruction& instruction, const plan::StepContext& context,
                       comm::Communicator* communicator);
  // Through the layers of the instruction's buckets; or, of an instruction that is input_only, all
  // of the part that the stage before waits for.
  absl::Status Backward(const plan::Instruction& instruction, comm::Communicator* communicator);
  absl::Status WeightGradient(const plan::Instruction& instruction,
                              comm::Communicator* communicator);
  // Sends or receives the buffer that the instruction names, over `communicator`.
  absl::Status Transfer(const plan::Instruction& instruction, comm::Communicator* communicator);

  // What computes; all borrowed.
  struct Computing {
    std::vector<model::TransformerChunk*> chunks;  // as RankChunks
    ops::Ops* ops = nullptr;
  };
  // Computes with something else from now on, and returns what it computed with before. The next
  // Forward begins the step of the last LoadBatch anew, with gradients of zero.
  Computing ComputeAgainWith(Computing computing);

  // Nats over this rank's tokens of the step; 0 where it has not the last chunk. Tensor ranks have
  // the same tokens.
  double loss_sum() const { return loss_sum_; }

 private:
  explicit StageCompute(const StageOptions& options);
  size_t IndexOf(const plan::Instruction& instruction) const {
    return static_cast<size_t>(options_.plan->IndexOfChunk(instruction.id.chunk()));
  }
  model::TransformerChunk& ChunkOf(const plan::Instruction& instruction) const {
    return *computing_.chunks[IndexOf(instruction)];
  }
  // Of the instruction's buckets.
  int FirstLayer(const plan::Instruction& instruction) const;
  void FillSlot(const plan::Instruction& instruction);
  // Makes the chunk add to the instruction's gradient buffer, if it has one.
  void UseGradientBuffer(const plan::Instruction& instruction);
  // A piece makes the gradients of whole layers, and its bucket may begin within one: what is
  // before that goes to the next piece's buffer.
  void TakeCarried(const plan::Instruction& piece, const GradientsInBuffer& gradients);
  void Carry(const plan::Instruction& piece);
  // Does the instruction by `pass`, together with the tensor ranks that share it.
  template <typename Pass>
  absl::Status Together(const plan::Instruction& instruction, comm::Communicator* communicator,
                        const Pass& pass);

  const StageOptions options_;
  Computing computing_;
  std::unique_ptr<data::BatchRingReader> reader_;
  std::vector<int32_t> batch_;  // this rank's samples of the step, [microbatch][sample][seq + 1]
  int64_t started_step_ = -1;   // whose loss was zeroed
  double loss_sum_ = 0;
};

}  // namespace megascale::engine
