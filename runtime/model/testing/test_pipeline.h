// For tests: a whole model as a row of chunks in one process, with inputs that look random and are
// the same each time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/model/transformer_chunk.h"
#include "runtime/ops/ops.h"

namespace megascale::model {

// Tensors by name, as float64.
using NamedValues = std::map<std::string, std::vector<double>>;

// A small model with biases that are not zero, two layers and six positions.
ModelConfig TinyConfig();

// The same style, large enough for vectors, tiles and threads; three layers and 37 positions.
ModelConfig LargerConfig();

// `config` with the options of Llama and Mistral: RMSNorm, SwiGLU, rotary positions, grouped
// queries (one key/value head), a window, no biases; and a parallel block that shares one norm.
ModelConfig NewStyle(ModelConfig config, int64_t window);

// `config` with the options of GPT-NeoX: a parallel block of two norms, rotary positions in half of
// each head, exact GELU.
ModelConfig NeoXStyle(ModelConfig config);

// One of each kind of block: `base`, NewStyle and NeoXStyle.
std::vector<ModelConfig> Styles(const ModelConfig& base, int64_t window);

// `base` with every combination of the options that change the mathematics.
std::vector<ModelConfig> AllCombinations(const ModelConfig& base);
// The options in which AllCombinations differ, for a failing test to say.
std::string Describe(const ModelConfig& config);

// `count` tokens below `vocab_size`; another `seed`, other tokens.
std::vector<int32_t> RandomTokens(int64_t count, int64_t vocab_size, uint64_t seed);

// The largest |a - b| over all elements; both must hold the same tensors.
double LargestDifference(const NamedValues& a, const NamedValues& b);

// How far gradients are from those expected: the largest |a - b| / max(|b|, |all of b| / 1000) over
// the tensors, in Euclidean norms. Both must hold the same tensors. A tensor whose gradient is all
// but zero is thus measured by the others.
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
};

class TestPipeline {
 public:
  // Parameters are random and depend on their names only: of several tensor ranks each has its part
  // of the same ones. `ops` must outlive the object.
  TestPipeline(const TestPipelineOptions& options, ops::Ops* ops);

  // One micro-batch through all chunks; `loss` grows by its nats. Tokens: [micro_batch, seq + 1].
  void Forward(int slot, const std::vector<int32_t>& tokens, double gradient_scale);
  // With split_backward only BackwardInput: the chunks' BackwardWeights are the test's to call.
  void Backward(int slot);
  double loss() const { return loss_; }

  // Nats of the first `batch` samples.
  double Evaluate(const std::vector<int32_t>& tokens, int64_t batch);
  // The logits behind the last token; one chunk only.
  std::vector<double> Logits(std::vector<int32_t> tokens);

  // Of what this tensor rank has.
  NamedValues Gradients() const;
  // The chunks' next gradients go to other memory, which is zero at first; and back at the next
  // call.
  void UseOtherGradients();
  // The elements of a float64 model's parameter, to be changed.
  double* Weights(const std::string& name);
  // Gives a parameter other values, rounded to the type that the model computes in.
  void SetWeights(const std::string& name, const std::vector<double>& values);
  // The parameters of all chunks, in order.
  std::vector<Parameter> Parameters() const;
  TransformerChunk& chunk(int index) { return *chunks_[index]; }

 private:
  void Fill(int slot, const std::vector<int32_t>& tokens);
  // A parameter's elements among its chunk's weights.
  Vector WeightsOf(const std::string& name);

  TestPipelineOptions options_;
  ops::Ops& ops_;
  tensor::Arena arena_;
  std::vector<ChunkLayout> layouts_;
  std::vector<ChunkParameters> parameters_;
  std::vector<Vector> other_gradients_;
  std::vector<std::unique_ptr<TransformerChunk>> chunks_;
  double loss_ = 0;
};

}  // namespace megascale::model
