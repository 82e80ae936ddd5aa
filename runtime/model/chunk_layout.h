// The parameters of a pipeline chunk, and the position of each in the chunk's flat parameter space:
// tensors one after the other, in the order of the forward pass. Weights, gradients and optimizer
// state all use this order. The flat space is cut into buckets of consecutive layers, and each
// bucket into equal consecutive parts, one for each data-parallel rank. A rank's shard is its part
// of every bucket. Immutable values; any thread may read them.
//
// Names follow Hugging Face's style. A linear weight is [out, in], row-major:
//   model.embed_tokens.weight     [V, C]          first chunk
//   model.embed_positions.weight  [P, C]          first chunk, learned positions
//   model.layers.I.input_norm.weight|bias         [C]
//   model.layers.I.attn.qkv.weight|bias           [(H + 2K) D, C]: queries, keys, values
//   model.layers.I.attn.q_norm.weight, k_norm.weight  [D]: with qk_norm
//   model.layers.I.attn.out.weight|bias           [C, H D]
//   model.layers.I.post_attention_norm.weight|bias  [C]: the MLP's norm; absent if shared
//   model.layers.I.mlp.up.weight|bias             [I, C], or [2I, C] for SwiGLU: gate, then up
//   model.layers.I.mlp.down.weight|bias           [C, I]
//   model.norm.weight|bias        [C]             last chunk
//   lm_head.weight                [V, C]          last chunk, unless tied: the head then uses
//                                                 model.embed_tokens.weight, wherever that is
// Biases exist if the config has them: has_norm_bias(), qkv_bias, attention_bias, mlp_bias.
//
// Tensor ranks cut queries, keys, values, gate and up each by rows (with their biases), attn.out
// and mlp.down by columns, and the vocabulary's matrices by rows. The other parameters are
// replicated, which means that each rank has a copy. If there are fewer key/value heads than ranks,
// several ranks have a copy of one head's rows. A rank's part of a tensor is a list of boxes of the
// global tensor, which follow each other in the local tensor. If the number of ranks does not
// divide the vocabulary, the last rank's local tensor ends in rows of padding. They are in no box,
// always zero, and never read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/model/config.h"
#include "runtime/model/tensor_group.h"

namespace megascale::model {

// Consecutive layers of the model, and whether the embedding comes before them and the head after
// them.
struct ChunkRange {
  int first_layer = 0;
  int num_layers = 0;
  bool has_embedding = false;
  bool has_head = false;
};

// Returns chunk `chunk_index` of `num_chunks` (pipeline stages times virtual stages). Layers are
// spread evenly. If num_chunks does not divide their number, the first chunks have one layer more.
// Errors: InvalidArgument - fewer layers than chunks.
absl::StatusOr<ChunkRange> MakeChunkRange(const ModelConfig& config, int num_chunks,
                                          int chunk_index);

// True if the chunk's head computes with the embedding matrix, but that is a parameter of another
// chunk. This happens with tied embeddings and several chunks.
bool BorrowsEmbedding(const ModelConfig& config, const ChunkRange& range);
// Returns the number of elements of the embedding matrix on each of `tensor_size` tensor ranks.
int64_t EmbeddingElements(const ModelConfig& config, int tensor_size);

// A box of a global tensor; its elements are in row-major order.
struct ParameterBox {
  std::vector<int64_t> offset;  // of its first element in the global tensor, by dimension
  std::vector<int64_t> shape;
  int64_t begin = 0;  // of its first element in the local tensor
  int64_t count = 0;  // elements
  // Several tensor ranks, neighbours in rank order, may have copies of this box; this rank has copy
  // number `copy`. Each copy's gradient is partial. Sums over the model count only copy 0.
  int copy = 0;
  int num_copies = 1;
};

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;         // of this rank's part
  std::vector<int64_t> global_shape;  // of the whole tensor
  // this rank's part, in order; a single box if the tensor is whole
  std::vector<ParameterBox> boxes;
  int64_t offset = 0;         // of its first element in the flat space
  int64_t size = 0;           // elements of this rank's part, padding included
  bool weight_decay = false;  // true for matrices and embeddings, false for norms and biases
  // There are several tensor ranks, and each has the whole parameter and computes a partial
  // gradient, from its own rows.
  bool replicated = false;
};

// Returns the index in the global tensor of element `index` of `box`, both row-major.
int64_t GlobalIndex(const Parameter& parameter, const ParameterBox& box, int64_t index);

// A range of the flat space. A shard's range may reach beyond num_elements(), into padding.
struct FlatRange {
  int64_t begin = 0;
  int64_t count = 0;
  bool operator==(const FlatRange&) const = default;
};

// Returns part `index` of `num_parts` equal parts. Requires: range.count divides evenly.
FlatRange SplitEvenly(const FlatRange& range, int num_parts, int index);
// Returns the intersection of the ranges.
FlatRange Overlap(const FlatRange& a, const FlatRange& b);

// Consecutive layers of a chunk, which are reduced and gathered together. The head belongs to the
// bucket of the last layers, the embedding to the bucket of the first layers.
struct Bucket {
  int first_layer = 0;  // counted from 0 in the chunk
  FlatRange range;
};
inline constexpr int kBucketsMax = 256;

// The elements of one box of a parameter that lie in a flat range.
struct ParameterSlice {
  int parameter_index = 0;
  int box_index = 0;
  int64_t begin = 0;         // within the local tensor
  int64_t begin_in_box = 0;  // within the box
  int64_t count = 0;
};

class ChunkLayout {
 public:
  // The layout of the chunk on the rank at `place`. Requires: CutsEvenly(config, place.size).
  ChunkLayout(const ModelConfig& config, const ChunkRange& range, TensorPlace place = {});

  TensorPlace place() const { return place_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // Returns the index of a parameter; -1 if this chunk has no parameter of that name.
  int Find(absl::string_view name) const;

  // Returns the number of elements of all parameters.
  int64_t num_elements() const { return num_elements_; }
  // Returns the first flat element whose gradient a backward pass computes if it ends with `layer`,
  // counted from 0 in the chunk. Layer 0 includes the embedding. For `layer` = number of layers:
  // the first element of the head.
  int64_t FirstElement(int layer) const;
  // Returns num_elements() rounded up to a multiple of 64 * num_shards. Elements from
  // num_elements() on are padding: always zero, never read.
  int64_t padded_elements(int num_shards) const;

  // Returns the buckets of the chunk, in the order in which a backward pass computes their
  // gradients: last layers first. Each bucket has as few layers as make `bucket_size` elements; the
  // last bucket has the remaining layers. `bucket_size` 0: one bucket has everything. There are at
  // most kBucketsMax buckets. Together they are the padded flat space. Since a bucket's parts are
  // multiples of 64, its range may begin up to 64 * num_shards elements after the start of its
  // first layer. The elements before the range belong to the next bucket, although their gradients
  // are computed with those of this bucket.
  std::vector<Bucket> Buckets(int num_shards, int64_t bucket_size) const;

  // Returns the parts of the parameters' boxes in a flat range, in order, without padding.
  std::vector<ParameterSlice> SlicesOf(const FlatRange& range) const;

 private:
  // How a parameter's rows or columns are cut.
  struct Cut;
  void Append(const std::string& name, std::vector<int64_t> global_shape, const Cut& cut);
  void AppendLayer(const ModelConfig& config, int layer);

  TensorPlace place_;
  std::vector<Parameter> parameters_;
  std::vector<int64_t> layer_offsets_;  // offset of each layer's first element, then of the head's
  absl::flat_hash_map<std::string, int> index_of_name_;
  int64_t num_elements_ = 0;
};

// FLOPs per token in a chunk, at sequence length `seq`. The model's TrainFlopsPerToken is 3 times
// the forward FLOPs of all its chunks.
struct TokenFlops {
  double forward = 0;  // matrix products, including those of attention
  double weights = 0;  // the part of backward for the gradients of the weights
  double backward() const { return 2 * forward; }  // includes `weights`
};
TokenFlops FlopsPerToken(const ModelConfig& config, const ChunkRange& range, int64_t seq);

}  // namespace megascale::model
