// Which part of the model a pipeline chunk holds, and where each of its parameters lies in the
// chunk's flat parameter space: tensors one behind the other, in the order of the forward pass.
// Weights, gradients and optimizer state all use this order, and data-parallel ranks own equal
// consecutive ranges (shards) of it. Immutable values; any thread may read them.
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
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/model/config.h"

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

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  int64_t offset = 0;         // of its first element in the flat space
  int64_t size = 0;           // elements
  bool weight_decay = false;  // matrices, embeddings among them; not norms, biases
};

// Part of the flat space. A shard's range may reach beyond num_elements(): that is padding.
struct FlatRange {
  int64_t begin = 0;
  int64_t count = 0;
};

// The part of one parameter that lies in a flat range.
struct ParameterSlice {
  int parameter_index = 0;
  int64_t begin = 0;  // within the tensor
  int64_t count = 0;
};

class ChunkLayout {
 public:
  ChunkLayout(const ModelConfig& config, const ChunkRange& range);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  // The index of a parameter, or -1 where this chunk has none of that name.
  int Find(absl::string_view name) const;

  // Elements of all parameters.
  int64_t num_elements() const { return num_elements_; }
  // Elements of `num_shards` equal shards, each num_elements() / num_shards rounded up to a
  // multiple of 64. What lies beyond num_elements() is padding: always zero, never read.
  int64_t padded_elements(int num_shards) const;
  FlatRange ShardRange(int num_shards, int index) const;

  // The parameters' parts in a flat range, in order, without padding.
  std::vector<ParameterSlice> SlicesOf(const FlatRange& range) const;

 private:
  void Append(const std::string& name, std::vector<int64_t> shape);
  void AppendLayer(const ModelConfig& config, int layer);

  std::vector<Parameter> parameters_;
  absl::flat_hash_map<std::string, int> index_of_name_;
  int64_t num_elements_ = 0;
};

}  // namespace megascale::model
