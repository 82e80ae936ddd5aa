// One pipeline chunk of the transformer: forward and backward in memory planned at creation. It
// allocates nothing in a step and knows no schedule: the caller decides which micro-batch goes
// forward or backward when.
//
// A slot holds one micro-batch in flight with its buffers, which sends and receives use directly:
//
//   first chunk                  every other chunk
//   fill tokens(slot)            receive into input(slot)
//   last chunk: fill targets(slot) too
//   with ChunkOptions::within_documents: fill document_begins(slot)
//   chunk->Forward(slot);                     // last chunk: chunk->Forward(slot, {scale, &loss})
//   send output(slot)            last chunk: nothing; gradient(slot) is ready
//   receive into gradient(slot)  last chunk: nothing
//   chunk->Backward(slot);
//   first chunk: nothing         send gradient(slot)
//
// A slot is free for another micro-batch when Backward is done and its sends have read it. The last
// chunk's Forward computes the loss and its gradient together, so that logits exist for one
// micro-batch only. It therefore already accumulates the head's gradients.
//
// With ChunkOptions::split_backward, Backward may come in two parts, so that a schedule can send
// the input's gradient before it computes the weight gradients, and can fill bubbles with the
// latter:
//
//   chunk->BackwardInput(slot);       // instead of Backward
//   first chunk: nothing              send gradient(slot)
//   chunk->BackwardWeights(slot);     // any time later; the slot is free after it
//
// Source: Qi et al., Zero Bubble Pipeline Parallelism, 2023 (B and W).
//
// Several tensor ranks hold a chunk together, each with a TransformerChunk of its own. Each has its
// parameters, those of ChunkLayout(config, range, tensor), and its own rows of input, output and
// gradient: R = N / t rows, on rank i those from i R on. All ranks are given the same tokens and
// targets, make the same calls in the same order, and compute the same loss. Gradients of
// replicated parameters are partial: the caller sums them over the ranks.
//
// Threads: one at a time, that of `ops`. Stream: all work is ordered on `ops`; other streams may
// use the buffers after an event recorded behind the call. Determinism: as Ops.
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

// The memory of a chunk's parameters: flat spaces in the order of ChunkLayout(config, range,
// tensor), with at least its num_elements(). Values may change between calls, addresses may not.
// Only gradients may cover a part of the space; AddGradientsTo then says before each call which
// part.
struct ChunkParameters {
  Vector weights;  // compute
  // F: accumulated; the caller zeroes them before a step. Empty: evaluation only.
  Vector gradients;
  // [EarlyElements] F, zero: for a caller whose gradients cover only the layers of the next call. A
  // call also makes gradients of other layers, or of the embedding, and sums them here. The call
  // that completes such a layer's gradients adds them and leaves zeros. Empty: all go to
  // `gradients`.
  Vector early_gradients = {};
  // For a chunk that BorrowsEmbedding only. `head_weight` [EmbeddingElements] compute: a copy of
  // the embedding matrix. `head_gradient` [EmbeddingElements] F: Forward accumulates the gradient
  // of the head's use of it, whatever AddGradientsTo says. Empty: evaluation only.
  Vector head_weight = {};
  Vector head_gradient = {};
};

// How the last chunk computes the loss from its logits.
struct ChunkLoss {
  double gradient_scale = 1.0;  // factor on each token's loss: 1 / (tokens of the global batch)
  // [1] F64: increased by the micro-batch's nats, unscaled. Every tensor rank adds those of all N
  // tokens.
  Vector sum = {};
};

// The keys and values of earlier tokens of some sequences, for generation: by layer, [S * capacity,
// K * D] compute.
struct KeyValueCache {
  std::vector<Matrix> keys, values;
  int64_t capacity = 0;  // tokens of a sequence
};

class TransformerChunk {
 public:
  // `ops`, the parameters' memory and `group` must outlive the chunk. `group` has the place
  // options.tensor; it is null if that is a single rank. After it fails, buffers and gradients are
  // undefined: check its status() after each call. Errors: InvalidArgument - seq exceeds
  // max_positions of learned positions, or a split backward with recomputation, or the tensor ranks
  // cannot have equal parts; those of `allocate`, which gives the ActivationBytes(options) bytes.
  static absl::StatusOr<std::unique_ptr<TransformerChunk>> Create(
      const ChunkOptions& options, ops::Ops* ops, const ChunkParameters& parameters,
      TensorGroup* group = nullptr, tensor::AllocateArena allocate = tensor::Arena::Create);
  // The same with buffers in `memory`. Requires: ActivationBytes(options) bytes are free in it.
  static absl::StatusOr<std::unique_ptr<TransformerChunk>> CreateIn(
      tensor::Arena memory, const ChunkOptions& options, ops::Ops* ops,
      const ChunkParameters& parameters, TensorGroup* group = nullptr);

  TransformerChunk(const TransformerChunk&) = delete;
  TransformerChunk& operator=(const TransformerChunk&) = delete;

  // Returns the bytes that Create allocates: the buffers of all slots and the scratch memory.
  static int64_t ActivationBytes(const ChunkOptions& options);
  // Returns the size of ChunkParameters::early_gradients: the elements of parameters to whose
  // gradients a call adds before the call that completes them. These are a tied output matrix
  // (Forward), and with split_backward the parameters to which BackwardInput adds.
  static int64_t EarlyElements(const ChunkOptions& options);

  // The slot's buffers; N = micro_batch * seq.
  Vector tokens(int slot) const { return SlotAt(slot).tokens_N; }    // [N] I32; first chunk
  Vector targets(int slot) const { return SlotAt(slot).targets_N; }  // [N] I32; last chunk
  // [N] I32, as in ops::AttentionArgs; every chunk, with within_documents. Read until the slot is
  // free.
  Vector document_begins(int slot) const { return SlotAt(slot).document_begins_N; }
  // [R, C]; all chunks but the first
  Matrix input(int slot) const { return SlotAt(slot).input_RC; }
  // [R, C]; all chunks but the last
  Matrix output(int slot) const { return SlotAt(slot).output_RC; }
  // The loss's gradient: with respect to the output before Backward, to the input after it.
  Matrix gradient(int slot) const { return SlotAt(slot).gradient_RC; }

  // Runs the micro-batch in `slot`, and keeps activations for Backward. `loss` is for the last
  // chunk.
  void Forward(int slot, const ChunkLoss& loss = {});
  // Accumulates the micro-batch's gradients of the parameters. Requires: Forward(slot) before.
  //
  // Goes down to layer `down_to`, counted from 0 in the chunk; layer 0 includes the embedding, and
  // the slot is free after it. The next call for the slot continues below. Each call accumulates
  // gradients of its own layers only. The same holds for BackwardWeights.
  void Backward(int slot, int down_to = 0);

  // Makes later calls accumulate into these gradients instead of the previous ones: a flat space
  // like that of ChunkParameters. This includes the last chunk's Forward.
  //
  // With early gradients they may be a part of the flat space, from element `first` on: that of the
  // layers of the next call. For Forward this is the part of the head, from FirstElement(number of
  // layers) on.
  void AddGradientsTo(const Vector& gradients, int64_t first = 0);

  // Backward in two parts. BackwardInput fills gradient(slot), and accumulates all gradients except
  // those of the layers' matrices: those of norms, biases and embeddings are cheap. BackwardWeights
  // accumulates the matrices' gradients: at any time after BackwardInput(slot), and in any order of
  // slots. Requires: split_backward; Forward(slot) before BackwardInput, which comes before
  // BackwardWeights. Effects: input(slot) belongs to the chunk from BackwardInput to
  // BackwardWeights. Determinism: a gradient has the same bits as with Backward if the calls that
  // accumulate it come in the same order of micro-batches.
  void BackwardInput(int slot);
  void BackwardWeights(int slot, int down_to = 0);

  // Runs only the forward of the first `batch` samples of the slot: fills output, or adds the nats
  // of batch * seq tokens to `loss_sum` [1] F64. Requires: the slot is free.
  void Evaluate(int slot, int64_t batch, const Vector& loss_sum);

  // Returns the logits [V] (compute) after the last of `tokens` (1 to seq, I32). They are in
  // scratch memory and valid until the next call. Uses slot 0, like Evaluate. Requires: the chunk
  // is the whole model on one tensor rank.
  Vector Logits(const Vector& tokens);

  // Runs N new tokens after those that the cache holds, and adds theirs to it. places_N [N] I32:
  // the row of each in the cache, which also tells its sequence and position, sequence * capacity +
  // position. Returns the logits [num_logits, V] after the last `num_logits` tokens, at most
  // ops::kFewRows; they are valid until the next call. Requires: options.generates. Determinism:
  // with at most ops::kFewRows tokens, each has the same bits whatever the others are.
  Matrix Continue(const Vector& tokens_N, const Vector& places_N, const KeyValueCache& cache,
                  int64_t num_logits);

 private:
  TransformerChunk(const ChunkOptions& options, ops::Ops* ops, TensorGroup* group);

  // The next pass that a slot waits for.
  enum class SlotState : uint8_t { kFree, kBackward, kBackwardWeights };

  const SlotMemory& SlotAt(int slot) const;
  // Returns the shape of the first `batch` samples of a slot.
  BatchShape ShapeOf(const SlotMemory& slot, int64_t batch) const;
  // Removes the layers from `down_to` on from those that the slot's backward has not reached, and
  // returns how many were left before.
  int TakeLayers(int slot, int down_to);
  void BindParameters(const ChunkParameters& parameters);
  void BindEarlyGradients(const Vector& space);
  void BindBorrowedHead(const ChunkParameters& parameters);
  // Calls `visit` with each view of gradients that exists: a Vector or a Matrix.
  template <typename Visit>
  void ForEachGradient(const Visit& visit);
  // Checks that gradients_ covers these elements of the flat space.
  void CheckGradients(int64_t begin, int64_t end) const;
  // Adds the early gradients of layers [first, end) to their gradients.
  void AddEarlyGradients(int first, int end);
  void Embed(const Vector& tokens_N, BatchShape shape, const Matrix& out_RC);
  // Runs the embedding and the layers; with a cache as Continue.
  Residual ForwardLayers(const SlotMemory& slot, const Vector& tokens_N, BatchShape shape,
                         const KeyValueCache* cache = nullptr);
  // Computes the final norm and the logits of all rows of `residual`; returns the logits.
  Matrix ForwardHead(Residual residual);
  // Sums the loss over tensor ranks' columns. With args.backward it turns these columns of logits
  // into gradients.
  void CrossEntropy(ops::CrossEntropyArgs args);
  void LossBackward(const SlotMemory& slot, const Matrix& d_logits_NV);
  void EmbeddingBackward(const SlotMemory& slot);

  const ChunkOptions options_;
  const ModelConfig part_;  // this tensor rank's part
  ops::Ops& ops_;
  TensorRows rows_;
  const ops::VocabularyPart vocabulary_;  // this tensor rank's part
  TransformerBlock block_;
  tensor::Arena arena_;
  ChunkMemory memory_;
  std::vector<SlotState> slot_states_;
  // by slot: layers that its Backward, or BackwardWeights, has not reached
  std::vector<int> layers_left_;

  const ChunkLayout layout_;  // of the flat spaces
  bool can_train_ = false;
  Vector gradients_;            // F: the memory that the d_ members view
  int64_t first_gradient_ = 0;  // flat element at which gradients_ begins
  struct EarlyGradient {
    Vector sum;
    int64_t offset = 0;  // in the flat space
  };
  std::vector<EarlyGradient> early_gradients_;
  std::vector<void**> late_gradients_;  // data pointers of the d_ members that view gradients_
  Matrix token_weight_VC_, d_token_weight_VC_;  // first chunk
  // First chunk, learned positions, first tensor rank only: it adds the positions to its part.
  Matrix position_weight_TC_, d_position_weight_TC_;
  std::vector<BlockParameters> layers_;
  NormParameters final_norm_;  // last chunk
  LinearParameters head_;      // last chunk; the token embedding, or a copy of it, when tied
};

}  // namespace megascale::model
