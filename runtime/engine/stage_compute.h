// Handlers of plan::Executor for the stage's instructions on this rank: load the batch, forward,
// backward, the passes of evaluations, and the transfers between pipeline stages. Each runs on the
// stream that the plan names, ordered by the plan alone. Ownership: borrows everything in its
// options, which must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/comm/communicator.h"
#include "runtime/data/batches/batch_ring.h"
#include "runtime/device/device.h"
#include "runtime/device/upload_buffer.h"
#include "runtime/engine/chunk_state.h"
#include "runtime/engine/tensor_peers.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/plan/execute/executor.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/stream/stream.h"

namespace megascale::engine {

struct StageOptions {
  const megascale::job::v1::JobSpec* spec = nullptr;  // resolved
  const plan::RankPlan* plan = nullptr;
  const ChunkStates* chunks = nullptr;
  const GradientBuffers* gradient_buffers = nullptr;
  // With ZeRO stage 2: gradients that one piece of a backward made for the next piece's bucket, F.
  tensor::Vector carried;
  TiedEnds tied_ends;
  tensor::Vector loss_sum;      // [1] F64
  tensor::Vector held_out_sum;  // [1] F64
  ops::Ops* ops = nullptr;      // for the compute stream
  device::Device* device = nullptr;
  stream::Stream* stream = nullptr;          // the compute stream
  stream::Stream* load_stream = nullptr;     // that of LoadBatch; null: the rank reads no batches
  TensorPeers* peers = nullptr;              // for its passes; null: there is one tensor rank
  base::SharedMemory* batch_ring = nullptr;  // null: the rank reads no batches
  int batch_reader = 0;
  absl::Duration timeout;  // for each wait
};

// Returns the communicator of an instruction; null if it does not communicate.
using CommunicatorOf = std::function<comm::Communicator*(const plan::Instruction& instruction)>;

class StageCompute {
 public:
  // Errors: InvalidArgument - the ring was made for another job.
  static absl::StatusOr<std::unique_ptr<StageCompute>> Create(const StageOptions& options);

  // Returns the handlers of the stage's instructions, which call the methods below.
  plan::HandlerMap Handlers(const CommunicatorOf& communicator_of);

  // Brings the step's batch to the device, on `load_stream`.
  absl::Status LoadBatch();
  // The next three methods run a part of a pass. If tensor ranks share the pass, they exchange over
  // `communicator`. Errors: those of the communicator's calls.
  absl::Status Forward(const plan::Instruction& instruction, const plan::StepContext& context,
                       comm::Communicator* communicator);
  // Goes backward through the layers of the instruction's buckets. With `input_only` it computes
  // only the gradient of the chunk's input, for which the previous stage waits.
  absl::Status Backward(const plan::Instruction& instruction, comm::Communicator* communicator);
  absl::Status WeightGradient(const plan::Instruction& instruction,
                              comm::Communicator* communicator);
  // Brings a batch of held-out windows to the device, on `load_stream`.
  absl::Status LoadWindows();
  // Runs the forward of a micro-batch of windows, whose slot is free.
  absl::Status Evaluate(const plan::Instruction& instruction, const plan::StepContext& context,
                        comm::Communicator* communicator);
  // Sends or receives the buffer that the instruction names, over `communicator`.
  absl::Status Transfer(const plan::Instruction& instruction, comm::Communicator* communicator);

  // Returns the lowest layer of the instruction's buckets, counted from 0 in its chunk.
  int FirstLayer(const plan::Instruction& instruction) const;

  // What computes the passes; all borrowed.
  struct Computing {
    std::vector<model::TransformerChunk*> chunks;  // in the order of ChunkStates
    ops::Ops* ops = nullptr;
  };
  // Computes with `computing` from now on, and returns what it computed with before. The next
  // Forward restarts the step of the last LoadBatch, with zeroed gradients.
  Computing SwapCompute(Computing computing);

  // Returns the summed loss of this rank's tokens in the step, in nats, [1] F64; 0 on a rank
  // without the last chunk. Tensor ranks have the same tokens. Requires: read on the compute
  // stream.
  const tensor::Vector& loss_sum() const { return options_.loss_sum; }
  // The same for this rank's windows of the evaluation's batch, and the number of these windows.
  const tensor::Vector& held_out_sum() const { return options_.held_out_sum; }
  int64_t num_windows() const;

 private:
  explicit StageCompute(const StageOptions& options);
  size_t IndexOf(const plan::Instruction& instruction) const {
    return static_cast<size_t>(options_.plan->IndexOfChunk(instruction.id.chunk()));
  }
  model::TransformerChunk& ChunkOf(const plan::Instruction& instruction) const {
    return *computing_.chunks[IndexOf(instruction)];
  }
  // Copies the next batch of the ring to the memory that is uploaded.
  absl::Status ReadBatch();
  absl::Status FindDocuments();
  // Zeroes the sums of a step.
  void BeginSums();
  void FillSlot(const plan::Instruction& instruction);
  // Points the chunk at the instruction's gradient buffer, if it has one, to accumulate into it.
  void UseGradientBuffer(const plan::Instruction& instruction);
  // A backward piece makes the gradients of whole layers, but its bucket may begin within a layer.
  // Carry saves the part before the bucket; TakeCarried copies it to the next piece's buffer.
  void TakeCarried(const plan::Instruction& piece, const GradientsInBuffer& gradients);
  void Carry(const plan::Instruction& piece);
  // Runs `pass` for the instruction, together with the tensor ranks that share it.
  template <typename Pass>
  absl::Status Together(const plan::Instruction& instruction, comm::Communicator* communicator,
                        const Pass& pass);

  const StageOptions options_;
  Computing computing_;
  std::unique_ptr<data::BatchRingReader> reader_;
  std::unique_ptr<device::UploadBuffer> numbers_;  // the next two; null: the rank reads no batches
  absl::Span<int32_t> batch_;  // this rank's samples of the step, [microbatch][sample][seq + 1]
  // Where the documents of these samples begin, [microbatch][sample][seq]; empty if attention
  // reaches over documents.
  absl::Span<int32_t> document_begins_;
  int64_t started_step_ = -1;  // the step whose loss was zeroed last
  int64_t next_batch_ = 0;     // of the ring
  std::vector<int> windows_;   // by micro-batch of the batch of windows: how many there are
  plan::StepContext started_evaluation_ = {.attempt = -1};  // whose loss was zeroed last
};

}  // namespace megascale::engine
