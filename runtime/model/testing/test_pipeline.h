// For tests: a whole model as a sequence of chunks in one process, with pseudo-random inputs that
// are the same in every run. A head that borrows the embedding reads the first chunk's own memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/model/transformer_chunk.h"
#include "runtime/ops/ops.h"

namespace megascale::model {

// Tensors by name, in float64.
using NamedValues = std::map<std::string, std::vector<double>>;

// Returns a small model with non-zero biases, two layers and six positions.
ModelConfig TinyConfig();

// The same style, large enough for vectors, tiles and threads; three layers and 37 positions.
ModelConfig LargerConfig();

// Returns `config` with the options of Llama and Mistral: RMSNorm, SwiGLU, rotary positions,
// grouped queries (one key/value head), a window, no biases; and a parallel block that shares one
// norm.
ModelConfig NewStyle(ModelConfig config, int64_t window);

// Returns `config` with the options of GPT-NeoX: a parallel block of two norms, rotary positions in
// half of each head, exact GELU.
ModelConfig NeoXStyle(ModelConfig config);

// Returns `config` with the options of Qwen2 and Qwen3 together: those of NewStyle in a serial
// block, biases of queries, keys and values alone, norms of queries and keys; and scaled rotary
// frequencies. Every other layer has the window, the first one among them.
ModelConfig QwenStyle(ModelConfig config, int64_t window = 0);

// Returns one of each kind of block: `base`, NewStyle, NeoXStyle and QwenStyle.
std::vector<ModelConfig> Styles(const ModelConfig& base, int64_t window);

// Returns `base` with every combination of the options that change the mathematics. The norms of
// heads, the biases of queries, keys and values, and scaled frequencies alternate among them.
std::vector<ModelConfig> AllCombinations(const ModelConfig& base);
// Returns every fifth of these combinations, under `./dev soak` all: five shares no factor with any
// option's number of values.
std::vector<ModelConfig> SomeCombinations(const ModelConfig& base);
// Returns the options in which AllCombinations differ, for the messages of failing tests.
std::string Describe(const ModelConfig& config);

// Returns `count` tokens below `vocab_size`; a different `seed` gives different tokens.
std::vector<int32_t> RandomTokens(int64_t count, int64_t vocab_size, uint64_t seed);

// Returns the largest |a - b| over all elements. Requires: both have the same tensors.
double LargestDifference(const NamedValues& a, const NamedValues& b);

// Returns how far gradients are from the expected ones: the largest |a - b| / max(|b|, |all of b| /
// 1000) over the tensors, in Euclidean norms. Requires: both have the same tensors. A tensor whose
// gradient is almost zero is thus compared with the norm of the others.
double LargestTensorDistance(const NamedValues& gradients, const NamedValues& expected);

struct TestPipelineOptions {
  ModelConfig config;
  int num_chunks = 1;
  int64_t micro_batch = 2;
  int64_t seq = 6;
  int num_slots = 1;
  bool split_backward = false;
  bool early_gradients = false;  // see ChunkParameters
  Recompute recompute = Recompute::kNone;
  TensorGroup* group = nullptr;  // null: one tensor rank
  int32_t end_token = -1;        // attention stays within documents, which it ends; -1: it does not
};

class TestPipeline {
 public:
  // Parameters are random and depend only on their names; each of several tensor ranks has its part
  // of the same values. `ops` must outlive the object.
  TestPipeline(const TestPipelineOptions& options, ops::Ops* ops);

  // Runs one micro-batch through all chunks and adds its nats to `loss`. Tokens: [micro_batch, seq
  // + 1].
  void Forward(int slot, const std::vector<int32_t>& tokens, double gradient_scale);
  // With split_backward runs only BackwardInput; the test calls the chunks' BackwardWeights itself.
  void Backward(int slot);
  double loss() const { return loss_; }

  // Returns the nats of the first `batch` samples.
  double Evaluate(const std::vector<int32_t>& tokens, int64_t batch);
  // Returns the logits after the last token; one chunk only.
  std::vector<double> Logits(std::vector<int32_t> tokens);

  // Returns the gradients of this tensor rank's parts.
  NamedValues Gradients() const;
  // Makes the chunks add their next gradients to other memory, which is zero at first; the next
  // call switches back.
  void UseOtherGradients();
  // Returns the elements of a parameter of a float64 model, which the test may change.
  double* Weights(const std::string& name);
  // Sets a parameter's values, rounded to the compute type.
  void SetWeights(const std::string& name, const std::vector<double>& values);
  // Returns the parameters of all chunks, in order.
  std::vector<Parameter> Parameters() const;
  TransformerChunk& chunk(int index) { return *chunks_[index]; }

 private:
  void Fill(int slot, const std::vector<int32_t>& tokens);
  // Returns a parameter's elements among its chunk's weights.
  Vector WeightsOf(const std::string& name);

  TestPipelineOptions options_;
  ops::Ops& ops_;
  tensor::Arena arena_;
  std::vector<ChunkLayout> layouts_;
  std::vector<ChunkParameters> parameters_;
  std::vector<Vector> other_gradients_;
  Vector head_gradient_;  // of a head that borrows the first chunk's embedding; else empty
  std::vector<std::unique_ptr<TransformerChunk>> chunks_;
  double loss_ = 0;
};

}  // namespace megascale::model
