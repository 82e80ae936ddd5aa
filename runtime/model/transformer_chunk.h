// One pipeline chunk of the transformer: forward and backward over memory planned at creation.
// Nothing is allocated in a step, and nothing here knows a schedule: the caller says which
// micro-batch goes forward or backward when.
//
// A slot holds one micro-batch in flight, with its buffers, which are handed straight to sends and
// receives:
//
//   first chunk                  every other chunk
//   fill tokens(slot)            receive into input(slot)
//   last chunk: fill targets(slot) too
//   chunk->Forward(slot);                     // last chunk: chunk->Forward(slot, {scale, &loss})
//   send output(slot)            last chunk: nothing; gradient(slot) is ready
//   receive into gradient(slot)  last chunk: nothing
//   chunk->Backward(slot);
//   first chunk: nothing         send gradient(slot)
//
// A slot is free for another micro-batch when Backward is done and its sends have read it. The last
// chunk's Forward fuses loss and its gradient, so that logits exist for one micro-batch only; it
// therefore adds to the head's gradients already.
//
// Threads: one at a time, that of `ops`. Stream: all work is ordered on `ops`; buffers are ready
// for others after an event behind the call. Determinism: as Ops.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/model/activation_memory.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/config.h"
#include "runtime/model/transformer_block.h"
#include "runtime/ops/ops.h"
#include "runtime/tensor/arena.h"
#include "runtime/tensor/tensor.h"

namespace megascale::model {

// Where a chunk's parameters live. Flat spaces in the order of ChunkLayout(config, range), of at
// least its num_elements(); their values may change between calls, they may not move.
struct ChunkParameters {
  Vector weights;    // compute
  Vector gradients;  // F: added to; the caller zeroes it before a step. None: evaluation only.
};

// What the last chunk does with its logits.
struct ChunkLoss {
  double gradient_scale = 1.0;  // of each token's loss: 1 / (tokens of the global batch)
  double* sum = nullptr;        // added to: nats over the micro-batch's tokens; unscaled
};

class TransformerChunk {
 public:
  // `ops` and the parameters' memory must outlive the chunk.
  // Errors: InvalidArgument - seq exceeds max_positions of learned positions; ResourceExhausted -
  // no memory for ActivationBytes(options).
  static absl::StatusOr<std::unique_ptr<TransformerChunk>> Create(
      const ChunkOptions& options, ops::Ops* ops, const ChunkParameters& parameters);

  TransformerChunk(const TransformerChunk&) = delete;
  TransformerChunk& operator=(const TransformerChunk&) = delete;

  // What Create allocates: the buffers of all slots and the scratch memory.
  static int64_t ActivationBytes(const ChunkOptions& options);
  // The weights in compute and the gradients in F, which the caller allocates, without padding.
  static int64_t ParameterBytes(const ChunkOptions& options);

  // The slot's buffers; N = micro_batch * seq.
  Vector tokens(int slot) const { return SlotAt(slot).tokens_N; }    // [N] I32; first chunk
  Vector targets(int slot) const { return SlotAt(slot).targets_N; }  // [N] I32; last chunk
  Matrix input(int slot) const { return SlotAt(slot).input_NC; }     // not the first chunk's
  Matrix output(int slot) const { return SlotAt(slot).output_NC; }   // not the last chunk's
  // Before Backward the loss's gradient with respect to the output, after it to the input.
  Matrix gradient(int slot) const { return SlotAt(slot).gradient_NC; }

  // Runs the micro-batch in `slot`, and keeps what Backward needs. `loss` is for the last chunk.
  void Forward(int slot, const ChunkLoss& loss = {});
  // Adds the micro-batch's part to the parameters' gradients. Requires: Forward(slot) before.
  void Backward(int slot);

  // Forward alone for the first `batch` samples of the slot: fills output, or adds to `*loss_sum`
  // the nats over batch * seq tokens. Requires: no Backward outstanding in the slot.
  void Evaluate(int slot, int64_t batch, double* loss_sum);

  // The logits [V] (compute) behind the last of `tokens` (1 to seq, I32), in scratch memory: valid
  // until the next call. Uses slot 0 as Evaluate does. Requires: the chunk is the whole model.
  Vector Logits(const Vector& tokens);

 private:
  TransformerChunk(const ChunkOptions& options, ops::Ops* ops);

  const SlotMemory& SlotAt(int slot) const;
  void BindParameters(const ChunkParameters& parameters);
  // Embedding and layers.
  Residual ForwardLayers(const SlotMemory& slot, const Vector& tokens_N, BatchShape shape);
  // Final norm and logits of all rows of `residual`; returns the logits.
  Matrix ForwardHead(Residual residual);
  void LossBackward(const SlotMemory& slot, const Matrix& d_logits_NV);

  const ChunkOptions options_;
  ops::Ops& ops_;
  TransformerBlock block_;
  tensor::Arena arena_;
  ChunkMemory memory_;
  std::vector<bool> backward_outstanding_;  // by slot

  bool can_train_ = false;
  Matrix token_weight_VC_, d_token_weight_VC_;        // first chunk
  Matrix position_weight_PC_, d_position_weight_PC_;  // first chunk, learned positions
  std::vector<BlockParameters> layers_;
  NormParameters final_norm_;  // last chunk
  LinearParameters head_;      // last chunk; the token embedding when tied
};

}  // namespace megascale::model
