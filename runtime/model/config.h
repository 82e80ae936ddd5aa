// The transformer as plain numbers, resolved from a job file's model section, and its cost.
// Everything else in this folder takes a ModelConfig and uses no proto.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/ops/ops.h"

namespace megascale::job::v1 {
class ModelSpec;
}

namespace megascale::model {

// The words of a job's model.layer_types.
inline constexpr char kFullAttention[] = "full_attention";
inline constexpr char kSlidingAttention[] = "sliding_attention";

enum class PositionKind : uint8_t { kLearned, kRotary };

// A decoder transformer. Every field has its final value. Only where a comment says so, 0 stands
// for a default.
struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;           // elements of one head
  int64_t intermediate_size = 0;  // width of the MLP's inner activation, after SwiGLU's gate
  int64_t max_positions = 0;      // rows of the position embedding; unused with rotary positions
  PositionKind position = PositionKind::kLearned;
  ops::NormKind norm = ops::NormKind::kLayerNorm;
  double norm_eps = 1e-5;
  ops::ActivationKind activation = ops::ActivationKind::kGeluTanh;
  bool parallel_block = false;  // x + attn(norm(x)) + mlp(norm(x))
  bool shared_norm = true;      // for a parallel block: its two branches share one norm
  bool attention_bias = true;   // for attention's output projection
  bool qkv_bias = true;         // for the fused projection to queries, keys and values
  bool qk_norm = false;         // each head's queries and keys pass an RMSNorm of their own
  bool mlp_bias = true;         // for the MLP's matrices
  // Tokens that a query sees, itself included; 0: all tokens up to itself.
  int64_t window = 0;
  // For each layer, whether it has no window; empty: every layer has it.
  std::vector<bool> full_layers = {};
  bool tied = false;         // the output matrix is the embedding matrix
  double init_range = 0.02;  // standard deviation of initial weights
  double rope_theta = 10000;
  int64_t rotary_dim = 0;  // first elements of a head that rotary positions rotate; 0: all
  ops::RotaryScaling rope_scaling = {};

  // Returns the window of a layer of the model; 0: none.
  int64_t WindowOf(int64_t layer) const {
    return full_layers.empty() || !full_layers[static_cast<size_t>(layer)] ? window : 0;
  }
  // LayerNorms have a bias, RMSNorms do not. The output matrix never has one.
  bool has_norm_bias() const { return norm == ops::NormKind::kLayerNorm; }
  // Whether the MLP has a norm of its own.
  bool has_mlp_norm() const { return !parallel_block || !shared_norm; }
  // Returns the columns of the fused query, key and value projection: (H + 2K) * D.
  int64_t qkv_size() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  // Returns the columns of queries and keys together: (H + K) * D.
  int64_t qk_size() const { return (num_heads + num_kv_heads) * head_dim; }
  // Returns the rows of the MLP's first matrix: I, or 2I for SwiGLU, whose first half is the gate.
  int64_t up_size() const {
    return intermediate_size * (activation == ops::ActivationKind::kSwiGlu ? 2 : 1);
  }
};

// Whether each of `tensor_size` ranks can have an equal part of the query heads, the key/value
// heads, the MLP's inner width and the rows of the vocabulary. The vocabulary's rows may end in
// padding on the last rank, but no rank may have only padding. If there are fewer key/value heads
// than ranks, each rank has one head, and the same number of ranks share each head.
bool CutsEvenly(const ModelConfig& config, int tensor_size);
// Returns the rows of the vocabulary of each rank, padding included: V / t rounded up.
int64_t VocabularyRows(int64_t vocab_size, int tensor_size);
// Returns the config of one of `tensor_size` ranks: each dimension that is cut has the size of this
// rank's part. Sizes of kernels and buffers follow from this config. For initial weights and FLOPs,
// use the whole model's config. Requires: CutsEvenly(config, tensor_size).
ModelConfig PartOfTensorRank(ModelConfig config, int tensor_size);

// Returns the config of a resolved specification. Zeros take the defaults that proto/job.proto
// names, except max_position_embeddings: its default is the job's sequence length, which is unknown
// here. Errors: InvalidArgument - a size is missing, negative or does not divide; names the field.
absl::StatusOr<ModelConfig> MakeModelConfig(const job::v1::ModelSpec& spec);

// Returns the number of parameters of the whole model; a tied output matrix counts once.
int64_t NumParameters(const ModelConfig& config);

// Returns the model FLOPs of forward and backward per token at sequence length `seq`, for model
// FLOPs utilisation: 3 * (2 * M + L * 4 * H * D * S). M is the number of elements of all matrices
// that multiply activations (qkv, attention output, MLP, output matrix; not the embeddings). S is
// the mean number of keys that a query sees under the causal mask and the window, so attention
// counts about half of the full square. Recomputation, norms, activation functions and softmax are
// not counted. Backward is twice forward.
double TrainFlopsPerToken(const ModelConfig& config, int64_t seq);

}  // namespace megascale::model
