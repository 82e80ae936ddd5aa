// Which part of the model a pipeline chunk holds, and where each of its parameters lies in the
// chunk's flat parameter space: tensors one behind the other, in the order of the forward pass.
// Weights, gradients and optimizer state all use this order. It is cut into buckets of consecutive
// layers, and of each bucket data-parallel ranks own equal consecutive parts: a rank's shard is its
// part of every bucket. Immutable values; any thread may read them.
//
// Names follow Hugging Face's style. A linear weight is [out, in], row-major:
//   model.embed_tokens.weight     [V, C]          first chunk
//   model.embed_positions.weight  [P, C]          first chunk, learned positions
//   model.layers.I.input_norm.weight|bias         [C]
//   model.layers.I.attn.qkv.weight|bias           [(H + 2K) D, C]: queries, keys, values
//   model.layers.I.attn.out.weight|bias           [C, H D]
//   model.layers.I.post_attention_norm.weight|bias  [C]: the MLP's norm; not where it is shared
//   model.layers.I.mlp.up.weight|bias             [I, C], or [2I, C] for SwiGLU: gate, then up
//   model.layers.I.mlp.down.weight|bias           [C, I]
//   model.norm.weight|bias        [C]             last chunk
//   lm_head.weight                [V, C]          last chunk, unless tied
// Biases exist where the config says so: has_norm_bias(), attention_bias, mlp_bias.
//
// Tensor ranks cut queries, keys, values, gate and up each by its rows (with their biases),
// attn.out and mlp.down by their columns, and the vocabulary's matrices by their rows. Each has a
// copy of the rest. What a rank has of a tensor is a row of boxes: boxes of the global tensor that
// lie one behind the other in the local one.
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

// Consecutive layers of the model, with what stands before the first and behind the last.
struct ChunkRange {
  int first_layer = 0;
  int num_layers = 0;
  bool has_embedding = false;
  bool has_head = false;
};

// Chunk `chunk_index` of `num_chunks` (pipeline stages times virtual stages). Layers are spread
// evenly; the first chunks have one more where they do not divide.
// Errors: InvalidArgument - fewer layers than chunks; a tied output matrix in more than one chunk.
absl::StatusOr<ChunkRange> MakeChunkRange(const ModelConfig& config, int num_chunks,
                                          int chunk_index);

// Part of a global tensor, row-major in itself.
struct ParameterBox {
  std::vector<int64_t> offset;  // of its first element in the global tensor, by dimension
  std::vector<int64_t> shape;
  int64_t begin = 0;  // of its first element among the local tensor's
  int64_t count = 0;  // elements
};

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;         // of what this rank has
  std::vector<int64_t> global_shape;  // of all of it
  std::vector<ParameterBox> boxes;  // what this rank has, in order; one, of all, where it is whole
  int64_t offset = 0;               // of its first element in the flat space
  int64_t size = 0;                 // elements of what this rank has
  bool weight_decay = false;        // matrices, embeddings among them; not norms, biases
  // Each of several tensor ranks has all of it, and makes a partial gradient, from its own rows.
  bool replicated = false;
};

// Which element of the global tensor is element `index` of `box`, in row-major order.
int64_t GlobalIndex(const Parameter& parameter, const ParameterBox& box, int64_t index);

// Part of the flat space. A shard's range may reach beyond num_elements(): that is padding.
struct FlatRange {
  int64_t begin = 0;
  int64_t count = 0;
  bool operator==(const FlatRange&) const = default;
};

// Part `index` of `num_parts` equal ones. Requires: they are equal.
FlatRange PartOf(const FlatRange& range, int num_parts, int index);
// What both have.
FlatRange Overlap(const FlatRange& a, const FlatRange& b);

// Consecutive layers of a chunk, reduced and gathered together; the head is with the last layers,
// the embedding with the first ones.
struct Bucket {
  int first_layer = 0;  // counted from 0 in the chunk
  FlatRange range;
};
inline constexpr int kBucketsMax = 256;

// What lies in a flat range of one box of a parameter.
struct ParameterSlice {
  int parameter_index = 0;
  int box_index = 0;
  int64_t begin = 0;         // within the local tensor
  int64_t begin_in_box = 0;  // within the box
  int64_t count = 0;
};

class ChunkLayout {
 public:
  // What the rank at `place` has of the chunk. Requires: CutsEvenly(config, place.size).
  ChunkLayout(const ModelConfig& config, const ChunkRange& range, TensorPlace place = {});

  TensorPlace place() const { return place_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // The index of a parameter, or -1 where this chunk has none of that name.
  int Find(absl::string_view name) const;

  // Elements of all parameters.
  int64_t num_elements() const { return num_elements_; }
  // Where the parameters begin that a backward pass through layers from `layer` on, counted from 0
  // in the chunk, makes the gradients of: the embedding's are those of layer 0. Of the number of
  // layers: where the head's begin.
  int64_t FirstElement(int layer) const;
  // num_elements() rounded up to a multiple of 64 num_shards. What lies beyond num_elements() is
  // padding: always zero, never read.
  int64_t padded_elements(int num_shards) const;

  // The chunk in buckets, in the order in which a backward pass makes their gradients: last layers
  // first. Each has at least `bucket_size` elements, but for the last one, and no more layers than
  // that takes; 0: one bucket, of everything. Together they are the padded flat space. A bucket's
  // range begins up to 64 num_shards elements behind its first layer, since its parts are multiples
  // of 64: what is before that, made at the same time, belongs to the next bucket, made later.
  std::vector<Bucket> Buckets(int num_shards, int64_t bucket_size) const;

  // The parts of the parameters' boxes in a flat range, in order, without padding.
  std::vector<ParameterSlice> SlicesOf(const FlatRange& range) const;

 private:
  // How a parameter's rows or columns are cut.
  struct Cut;
  void Append(const std::string& name, std::vector<int64_t> global_shape, const Cut& cut);
  void AppendLayer(const ModelConfig& config, int layer);

  TensorPlace place_;
  std::vector<Parameter> parameters_;
  std::vector<int64_t> layer_offsets_;  // of each layer's first element, then of the head's
  absl::flat_hash_map<std::string, int> index_of_name_;
  int64_t num_elements_ = 0;
};

// What one token costs in a chunk, at sequence length `seq`. The model's TrainFlopsPerToken is 3
// times the forward FLOPs of all its chunks.
struct TokenFlops {
  double forward = 0;                              // matrix products, attention among them
  double weights = 0;                              // of a backward: the gradients of the weights
  double backward() const { return 2 * forward; }  // with `weights`
};
TokenFlops FlopsPerToken(const ModelConfig& config, const ChunkRange& range, int64_t seq);

}  // namespace megascale::model
