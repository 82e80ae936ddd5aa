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
#include "runtime/model/transformer_chunk.h"
#include "runtime/plan/executor.h"
#include "runtime/plan/step_plan.h"

namespace megascale::engine {

struct StageOptions {
  const megascale::job::v1::JobSpec* spec = nullptr;  // resolved
  plan::Coordinate coordinate;
  model::TransformerChunk* chunk = nullptr;
  model::ChunkRange range;
  ops::Ops* ops = nullptr;                   // of the compute stream
  tensor::Vector gradients;                  // of the chunk, zeroed at the start of every step
  base::SharedMemory* batch_ring = nullptr;  // null where the rank reads no batches
  int batch_reader = 0;
  absl::Duration timeout;  // of each wait
};

class StageCompute {
 public:
  // Errors: InvalidArgument - the ring was made for another job.
  static absl::StatusOr<std::unique_ptr<StageCompute>> Create(const StageOptions& options);

  absl::Status LoadBatch(const plan::StepContext& context);
  absl::Status Forward(const plan::Instruction& instruction, const plan::StepContext& context);
  absl::Status Backward(const plan::Instruction& instruction);
  // Sends or receives the buffer that the instruction names, over `communicator`.
  absl::Status Transfer(const plan::Instruction& instruction, comm::Communicator* communicator);

  // Nats over this rank's tokens of the step; 0 where the chunk is not the last.
  double loss_sum() const { return loss_sum_; }

 private:
  explicit StageCompute(const StageOptions& options);
  void FillSlot(const plan::Instruction& instruction);

  const StageOptions options_;
  std::unique_ptr<data::BatchRingReader> reader_;
  std::vector<int32_t> batch_;  // this rank's samples of the step, [microbatch][sample][seq + 1]
  int64_t started_step_ = -1;   // whose gradients and loss were zeroed
  double loss_sum_ = 0;
};

}  // namespace megascale::engine
