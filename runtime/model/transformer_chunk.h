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
// With ChunkOptions::split_backward, Backward may come in two parts, so that a schedule can send
// the gradient before the weights' matrix products and fill its bubbles with these:
//
//   chunk->BackwardInput(slot);       // in place of Backward
//   first chunk: nothing              send gradient(slot)
//   chunk->BackwardWeights(slot);     // whenever; the slot is free after it
//
// Source: Qi et al., Zero Bubble Pipeline Parallelism, 2023 (B and W).
//
// Several tensor ranks hold a chunk together, each with a TransformerChunk of its own: with its
// parameters of ChunkLayout(config, range, tensor), and with its own rows of input, output and
// gradient: R = N / t, of which rank i has those from i R on. All of them are given the same tokens
// and targets, make the same calls in the same order, and know the same loss. Gradients of
// replicated parameters are partial: the caller adds them up over the ranks.
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

// Where a chunk's parameters live. Flat spaces in the order of ChunkLayout(config, range, tensor),
// of at least its num_elements(); their values may change between calls, they may not move. Only
// gradients may be a part, if AddGradientsTo says before each call which.
struct ChunkParameters {
  Vector weights;    // compute
  Vector gradients;  // F: added to; the caller zeroes it before a step. None: evaluation only.
  // [EarlyElements] F, zero: for a caller who gives each call the gradients of its layers alone.
  // What a call makes of other layers, or of the embedding, is added up here; the call that makes
  // that layer's gradients whole adds it to them, and leaves zero. None: all goes to `gradients`.
  Vector early_gradients = {};
};

// What the last chunk does with its logits.
struct ChunkLoss {
  double gradient_scale = 1.0;  // of each token's loss: 1 / (tokens of the global batch)
  // Added to: nats over the micro-batch's tokens; unscaled. Every tensor rank's is that of all N.
  double* sum = nullptr;
};

class TransformerChunk {
 public:
  // `ops`, the parameters' memory and `group` must outlive the chunk. `group` is at options.tensor,
  // and null where that is one rank. After its failure buffers and gradients hold anything: ask its
  // status() behind each call.
  // Errors: InvalidArgument - seq exceeds max_positions of learned positions, or backward is split
  // where activations are recomputed, or the tensor ranks cannot have equal parts;
  // ResourceExhausted - no memory for ActivationBytes(options).
  static absl::StatusOr<std::unique_ptr<TransformerChunk>> Create(const ChunkOptions& options,
                                                                  ops::Ops* ops,
                                                                  const ChunkParameters& parameters,
                                                                  TensorGroup* group = nullptr);

  TransformerChunk(const TransformerChunk&) = delete;
  TransformerChunk& operator=(const TransformerChunk&) = delete;

  // What Create allocates: the buffers of all slots and the scratch memory.
  static int64_t ActivationBytes(const ChunkOptions& options);
  // Elements of the parameters whose gradients a call makes that is not the one which makes their
  // layer's whole, for ChunkParameters: a tied output matrix, by Forward; with split_backward what
  // BackwardInput adds to.
  static int64_t EarlyElements(const ChunkOptions& options);
  // The weights in compute and the gradients in F, which the caller allocates, without padding.
  static int64_t ParameterBytes(const ChunkOptions& options);

  // The slot's buffers; N = micro_batch * seq.
  Vector tokens(int slot) const { return SlotAt(slot).tokens_N; }    // [N] I32; first chunk
  Vector targets(int slot) const { return SlotAt(slot).targets_N; }  // [N] I32; last chunk
  Matrix input(int slot) const { return SlotAt(slot).input_RC; }     // [R, C]; not the first's
  Matrix output(int slot) const { return SlotAt(slot).output_RC; }   // [R, C]; not the last's
  // Before Backward the loss's gradient with respect to the output, after it to the input.
  Matrix gradient(int slot) const { return SlotAt(slot).gradient_RC; }

  // Runs the micro-batch in `slot`, and keeps what Backward needs. `loss` is for the last chunk.
  void Forward(int slot, const ChunkLoss& loss = {});
  // Adds the micro-batch's part to the parameters' gradients. Requires: Forward(slot) before.
  //
  // Down to layer `down_to`, counted from 0 in the chunk, and with layer 0 to the embedding's: then
  // the slot is free. The next call for the slot goes on below; each adds to the gradients of its
  // layers alone. So does each of BackwardWeights.
  void Backward(int slot, int down_to = 0);

  // Later calls add to these gradients, a flat space as that of ChunkParameters, in place of those
  // before. Of the last chunk, Forward adds as well.
  //
  // They may be a part of the flat space, from element `first` on: with early gradients, that of
  // the layers of the next call. Forward's is that of the head, which it has from
  // FirstElement(number of layers) on.
  void AddGradientsTo(const Vector& gradients, int64_t first = 0);

  // Backward in two parts. BackwardInput fills gradient(slot), and adds to all gradients but those
  // of the layers' matrices: to norms, biases and embeddings, whose part is cheap. BackwardWeights
  // adds to the matrices': at any time after BackwardInput(slot), other slots' calls in any order.
  // Requires: split_backward; Forward(slot) before BackwardInput, it before BackwardWeights.
  // Effects: input(slot) belongs to the chunk from BackwardInput to BackwardWeights.
  // Determinism: a gradient has the bits that Backward gives it where the calls that add to it come
  // in the same order of micro-batches.
  void BackwardInput(int slot);
  void BackwardWeights(int slot, int down_to = 0);

  // Forward alone for the first `batch` samples of the slot: fills output, or adds to `*loss_sum`
  // the nats over batch * seq tokens. Requires: the slot is free.
  void Evaluate(int slot, int64_t batch, double* loss_sum);

  // The logits [V] (compute) behind the last of `tokens` (1 to seq, I32), in scratch memory: valid
  // until the next call. Uses slot 0 as Evaluate does. Requires: the chunk is the whole model, of
  // one tensor rank.
  Vector Logits(const Vector& tokens);

 private:
  TransformerChunk(const ChunkOptions& options, ops::Ops* ops, TensorGroup* group);

  // What a slot waits for.
  enum class SlotState : uint8_t { kFree, kBackward, kBackwardWeights };

  const SlotMemory& SlotAt(int slot) const;
  // Takes the layers from `down_to` on out of those that the slot's backward has yet to go through,
  // and returns how many those were.
  int TakeLayers(int slot, int down_to);
  void BindParameters(const ChunkParameters& parameters);
  void BindEarlyGradients(const Vector& space);
  // Calls `visit` with each view of gradients that there is: a Vector or a Matrix.
  template <typename Visit>
  void ForEachGradient(const Visit& visit);
  // Calls add to these elements of the flat space now.
  void CheckGradients(int64_t begin, int64_t end) const;
  // Adds to the gradients of the layers from `first` up to `end` what calls made of them early.
  void AddEarlyGradients(int first, int end);
  void Embed(const Vector& tokens_N, int64_t seq, const Matrix& out_RC);
  // Embedding and layers.
  Residual ForwardLayers(const SlotMemory& slot, const Vector& tokens_N, BatchShape shape);
  // Final norm and logits of all rows of `residual`; returns the logits.
  Matrix ForwardHead(Residual residual);
  // Adds up the loss over tensor ranks' columns and, with args.backward, turns these into
  // gradients.
  void CrossEntropy(ops::CrossEntropyArgs args);
  void LossBackward(const SlotMemory& slot, const Matrix& d_logits_NV);
  void EmbeddingBackward(const SlotMemory& slot);

  const ChunkOptions options_;
  const ModelConfig part_;  // this tensor rank's
  ops::Ops& ops_;
  TensorRows rows_;
  const ops::VocabularyPart vocabulary_;  // this tensor rank's
  TransformerBlock block_;
  tensor::Arena arena_;
  ChunkMemory memory_;
  std::vector<SlotState> slot_states_;
  std::vector<int> layers_left_;  // by slot: that its Backward, or BackwardWeights, has not reached

  const ChunkLayout layout_;  // of the flat spaces
  bool can_train_ = false;
  Vector gradients_;            // F: what d_ names view
  int64_t first_gradient_ = 0;  // of the flat space: its element that gradients_ begins with
  struct EarlyGradient {
    Vector sum;
    int64_t offset = 0;  // in the flat space
  };
  std::vector<EarlyGradient> early_gradients_;
  std::vector<void**> late_gradients_;  // where the d_ that view gradients_ have their addresses
  Matrix token_weight_VC_, d_token_weight_VC_;  // first chunk
  // First chunk, learned positions. Only the first tensor rank's: it adds positions to its part.
  Matrix position_weight_TC_, d_position_weight_TC_;
  std::vector<BlockParameters> layers_;
  NormParameters final_norm_;  // last chunk
  LinearParameters head_;      // last chunk; the token embedding when tied
};

}  // namespace megascale::model
