// One pipeline chunk of the transformer: forward and backward in memory planned at creation. It
// allocates nothing in a step. It knows no schedule; the caller decides when which micro-batch goes
// forward or backward.
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
// A slot is free for another micro-batch when Backward is done and the sends from the slot have
// ended. The last chunk's Forward computes the loss and its gradient together, so that logits exist
// for one micro-batch only. So it is Forward that accumulates the head's gradients.
//
// With ChunkOptions::split_backward, Backward may come in two parts, so that a schedule can send
// the input's gradient before it computes the weight gradients, and can compute weight gradients in
// bubbles:
//
//   chunk->BackwardInput(slot);       // instead of Backward
//   first chunk: nothing              send gradient(slot)
//   chunk->BackwardWeights(slot);     // any time later; the slot is free after it
//
// Source: Qi et al., Zero Bubble Pipeline Parallelism, 2023 (B and W).
//
// Several tensor ranks hold a chunk together, each with a TransformerChunk of its own. Each rank
// has the parameters of ChunkLayout(config, range, tensor), and its own rows of input, output and
// gradient: R = N / t rows, on rank i the rows from i R on. All ranks are given the same tokens and
// targets, make the same calls in the same order, and compute the same loss. Gradients of
// replicated parameters are partial: the caller sums them over the ranks.
//
// Threads: one at a time, the thread of `ops`. Stream: all work is ordered on `ops`; other streams
// may use the buffers after an event recorded behind the call. Determinism: as Ops.
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
// Only `gradients` may cover less than the whole space; then AddGradientsTo must tell the covered
// part before each call.
struct ChunkParameters {
  Vector weights;  // compute
  // F: accumulated; the caller zeroes them before a step. Empty: evaluation only.
  Vector gradients;
  // [EarlyElements] F, zero: for a caller whose `gradients` cover only the layers of the next call.
  // A call also computes gradients of other layers, or of the embedding, and sums them here. The
  // call that completes such a layer's gradients adds these sums to `gradients` and sets them to
  // zero. Empty: all gradients go to `gradients`.
  Vector early_gradients = {};
  // For a chunk that BorrowsEmbedding only. `head_weight` [EmbeddingElements] compute: a copy of
  // the embedding matrix. `head_gradient` [EmbeddingElements] F: here Forward accumulates the
  // matrix's gradient from the head, whatever AddGradientsTo says. Empty: evaluation only.
  Vector head_weight = {};
  Vector head_gradient = {};
};

// How the last chunk computes the loss from its logits.
struct ChunkLoss {
  double gradient_scale = 1.0;  // factor on each token's loss: 1 / (tokens of the global batch)
  // [1] F64: the micro-batch's loss in nats is added to it, unscaled. Every tensor rank adds the
  // loss of all N tokens.
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
  // options.tensor; null if there is a single tensor rank. If `group` fails, buffers and gradients
  // are undefined, so check its status() after each call. `allocate` provides
  // ActivationBytes(options) bytes. Errors: InvalidArgument - seq exceeds max_positions of learned
  // positions, or a split backward with recomputation, or the tensor ranks cannot have equal parts;
  // those of `allocate`.
  static absl::StatusOr<std::unique_ptr<TransformerChunk>> Create(
      const ChunkOptions& options, ops::Ops* ops, const ChunkParameters& parameters,
      TensorGroup* group = nullptr, tensor::AllocateArena allocate = tensor::Arena::Create);
  // The same with buffers in `memory`. Requires: ActivationBytes(options) bytes are free in
  // `memory`.
  static absl::StatusOr<std::unique_ptr<TransformerChunk>> CreateIn(
      tensor::Arena memory, const ChunkOptions& options, ops::Ops* ops,
      const ChunkParameters& parameters, TensorGroup* group = nullptr);

  TransformerChunk(const TransformerChunk&) = delete;
  TransformerChunk& operator=(const TransformerChunk&) = delete;

  // Returns the bytes that Create allocates: the buffers of all slots and the scratch memory.
  static int64_t ActivationBytes(const ChunkOptions& options);
  // Returns the size of ChunkParameters::early_gradients. These are gradients to which one call
  // adds before another call completes them: of a tied output matrix (Forward adds to it), and with
  // split_backward of the parameters to whose gradients BackwardInput adds.
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
  // The loss's gradient: before Backward with respect to the output, after it with respect to the
  // input.
  Matrix gradient(int slot) const { return SlotAt(slot).gradient_RC; }

  // Runs the micro-batch in `slot`, and keeps activations for Backward. `loss` is for the last
  // chunk.
  void Forward(int slot, const ChunkLoss& loss = {});
  // Accumulates the micro-batch's gradients of the parameters. Requires: Forward(slot) came before.
  //
  // Ends with layer `down_to`, counted from 0 in the chunk. The next call for the slot continues
  // with the layer below. Layer 0 includes the embedding; after it the slot is free. Each call
  // accumulates gradients of its own layers only. The same holds for BackwardWeights.
  void Backward(int slot, int down_to = 0);

  // Makes later calls, including the last chunk's Forward, accumulate into `gradients` instead of
  // the previous gradients. `gradients` is a flat space as in ChunkParameters.
  //
  // With early gradients, `gradients` may be the part of the flat space, from element `first` on,
  // that has the layers of the next call. For Forward this is the part of the head, from
  // FirstElement(number of layers) on.
  void AddGradientsTo(const Vector& gradients, int64_t first = 0);

  // Backward in two parts. BackwardInput fills gradient(slot), and accumulates the gradients of
  // norms, biases and embeddings, because these are cheap. BackwardWeights accumulates the
  // gradients of the layers' matrices. It may run at any time after BackwardInput(slot), and in any
  // order of slots. Requires: split_backward; Forward(slot) before BackwardInput, which comes
  // before BackwardWeights. Effects: input(slot) belongs to the chunk from BackwardInput to
  // BackwardWeights. Determinism: a gradient has the same bits as with Backward if the calls that
  // accumulate it come in the same order of micro-batches.
  void BackwardInput(int slot);
  void BackwardWeights(int slot, int down_to = 0);

  // Runs only the forward of the first `batch` samples of the slot: fills output, or adds the nats
  // of batch * seq tokens to `loss_sum` [1] F64. Requires: the slot is free.
  void Evaluate(int slot, int64_t batch, const Vector& loss_sum) {
    Evaluate(slot, batch, batch, loss_sum);
  }
  // The same, but the last chunk adds the nats of the first `counted` samples only, 0 to `batch`.
  void Evaluate(int slot, int64_t batch, int64_t counted, const Vector& loss_sum);

  // Returns the logits [V] (compute) after the last of `tokens` (1 to seq, I32). They are in
  // scratch memory and valid until the next call. Uses slot 0, like Evaluate. Requires: the chunk
  // is the whole model on one tensor rank.
  Vector Logits(const Vector& tokens);

  // Runs N new tokens that follow the tokens in the cache, and adds their keys and values to the
  // cache. places_N [N] I32: each token's row in the cache, which is sequence * capacity + position
  // and so also tells the token's sequence and position. Returns the logits [num_logits, V] after
  // the last `num_logits` tokens, at most ops::kFewRows; they are valid until the next call.
  // Requires: options.generates. Determinism: with at most ops::kFewRows tokens, the bits of a
  // token's results do not depend on the other tokens.
  Matrix Continue(const Vector& tokens_N, const Vector& places_N, const KeyValueCache& cache,
                  int64_t num_logits);

 private:
  TransformerChunk(const ChunkOptions& options, ops::Ops* ops, TensorGroup* group);

  // The next pass that a slot waits for.
  enum class SlotState : uint8_t { kFree, kBackward, kBackwardWeights };

  const SlotMemory& SlotAt(int slot) const;
  // Returns the shape of the first `batch` samples of a slot.
  BatchShape ShapeOf(const SlotMemory& slot, int64_t batch) const;
  // Notes that the slot's backward goes down to layer `down_to`, and returns how many layers were
  // left before.
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
  // Runs the embedding and the layers; with a cache for Continue.
  Residual ForwardLayers(const SlotMemory& slot, const Vector& tokens_N, BatchShape shape,
                         const KeyValueCache* cache = nullptr);
  // Computes the final norm and the logits of all rows of `residual`; returns the logits.
  Matrix ForwardHead(Residual residual);
  // Computes the loss over all tensor ranks' columns of the logits. With args.backward it
  // overwrites this rank's columns with their gradients.
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
  // First chunk, learned positions, first tensor rank only, which adds the positions to its part of
  // the embedding.
  Matrix position_weight_TC_, d_position_weight_TC_;
  std::vector<BlockParameters> layers_;
  NormParameters final_norm_;  // last chunk
  LinearParameters head_;      // last chunk; the token embedding, or a copy of it, when tied
};

}  // namespace megascale::model
