#include "runtime/model/chunk_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace megascale::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig SmallConfig() {
  ModelConfig config;
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.num_layers = 5;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 2;
  config.intermediate_size = 12;
  config.max_positions = 7;
  return config;
}

const Parameter& Named(const ChunkLayout& layout, absl::string_view name) {
  const int index = layout.Find(name);
  EXPECT_GE(index, 0) << name;
  return layout.parameters()[index];
}

TEST(MakeChunkRange, SpreadsLayersEvenlyAndInOrder) {
  int next_layer = 0;
  for (int i = 0; i < 3; ++i) {
    const auto range = MakeChunkRange(SmallConfig(), 3, i);
    ASSERT_TRUE(range.ok());
    EXPECT_EQ(range->first_layer, next_layer);
    EXPECT_EQ(range->num_layers, i < 2 ? 2 : 1);
    EXPECT_EQ(range->has_embedding, i == 0);
    EXPECT_EQ(range->has_head, i == 2);
    next_layer += range->num_layers;
  }
  EXPECT_EQ(next_layer, 5);
}

TEST(MakeChunkRange, RefusesMoreChunksThanLayers) {
  const auto range = MakeChunkRange(SmallConfig(), 6, 0);
  EXPECT_EQ(range.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(range.status().message()), HasSubstr("num_hidden_layers is 5"));
}

TEST(ChunkLayout, ATiedHeadBorrowsTheEmbeddingOfAnotherChunk) {
  ModelConfig config = SmallConfig();
  const auto borrows = [&](int num_chunks, int chunk) {
    return BorrowsEmbedding(config, *MakeChunkRange(config, num_chunks, chunk));
  };
  EXPECT_FALSE(borrows(2, 1));
  config.tied = true;
  EXPECT_FALSE(borrows(1, 0));
  EXPECT_FALSE(borrows(2, 0));
  EXPECT_TRUE(borrows(2, 1));
  for (const int tensor_size : {1, 2}) {
    const ChunkLayout first(config, *MakeChunkRange(config, 2, 0), {tensor_size, 0});
    const ChunkLayout last(config, *MakeChunkRange(config, 2, 1), {tensor_size, 0});
    const Parameter& embedding = first.parameters()[0];
    EXPECT_EQ(embedding.name, "model.embed_tokens.weight");
    EXPECT_EQ(embedding.offset, 0);
    EXPECT_EQ(EmbeddingElements(config, tensor_size), embedding.size);
    EXPECT_EQ(last.Find("model.embed_tokens.weight"), -1);
    EXPECT_EQ(last.Find("lm_head.weight"), -1);
    EXPECT_EQ(last.parameters().back().name.substr(0, 11), "model.norm.");
  }
}

TEST(ChunkLayout, ChunksTogetherHoldEachParameterOfTheModelOnce) {
  const ModelConfig config = SmallConfig();
  const ChunkLayout whole(config, *MakeChunkRange(config, 1, 0));
  int64_t elements = 0;
  std::set<std::string> names;
  for (int i = 0; i < 3; ++i) {
    const ChunkLayout chunk(config, *MakeChunkRange(config, 3, i));
    elements += chunk.num_elements();
    int64_t offset = 0;
    for (const Parameter& parameter : chunk.parameters()) {
      EXPECT_EQ(parameter.offset, offset);
      EXPECT_EQ(parameter.shape, Named(whole, parameter.name).shape);
      EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
      offset += parameter.size;
    }
    EXPECT_EQ(offset, chunk.num_elements());
  }
  EXPECT_EQ(elements, whole.num_elements());
  EXPECT_EQ(names.size(), whole.parameters().size());
}

TEST(ChunkLayout, HasTheShapesOfAGroupedQuerySwiGluModelWithoutBiases) {
  ModelConfig config = SmallConfig();
  config.norm = ops::NormKind::kRmsNorm;
  config.attention_bias = config.qkv_bias = config.mlp_bias = false;
  config.activation = ops::ActivationKind::kSwiGlu;
  config.position = PositionKind::kRotary;
  const ChunkLayout layout(config, *MakeChunkRange(config, 1, 0));
  EXPECT_THAT(Named(layout, "model.layers.4.attn.qkv.weight").shape, ElementsAre(16, 8));
  EXPECT_THAT(Named(layout, "model.layers.4.mlp.up.weight").shape, ElementsAre(24, 8));
  EXPECT_THAT(Named(layout, "model.layers.4.mlp.down.weight").shape, ElementsAre(8, 12));
  EXPECT_THAT(Named(layout, "lm_head.weight").shape, ElementsAre(11, 8));
  EXPECT_EQ(layout.Find("model.embed_positions.weight"), -1);
  for (const Parameter& parameter : layout.parameters()) {
    EXPECT_THAT(parameter.name, testing::EndsWith(".weight"));
  }
}

TEST(ChunkLayout, DecaysMatricesOnly) {
  const ModelConfig config = SmallConfig();
  const ChunkLayout layout(config, *MakeChunkRange(config, 1, 0));
  EXPECT_TRUE(Named(layout, "model.embed_tokens.weight").weight_decay);
  EXPECT_TRUE(Named(layout, "model.layers.0.attn.out.weight").weight_decay);
  EXPECT_FALSE(Named(layout, "model.layers.0.attn.out.bias").weight_decay);
  EXPECT_FALSE(Named(layout, "model.norm.weight").weight_decay);
}

TEST(ChunkLayout, ParallelBlocksShareOneNormAndATiedHeadHasNoMatrix) {
  ModelConfig config = SmallConfig();
  config.parallel_block = true;
  config.tied = true;
  const ChunkLayout layout(config, *MakeChunkRange(config, 1, 0));
  EXPECT_EQ(layout.Find("model.layers.0.post_attention_norm.weight"), -1);
  EXPECT_EQ(layout.Find("lm_head.weight"), -1);
}

TEST(ChunkLayout, ParallelBlocksMayHaveANormForEachBranch) {
  ModelConfig config = SmallConfig();
  config.parallel_block = true;
  config.shared_norm = false;
  const ChunkLayout layout(config, *MakeChunkRange(config, 1, 0));
  EXPECT_THAT(Named(layout, "model.layers.0.post_attention_norm.weight").shape, ElementsAre(8));
  EXPECT_THAT(Named(layout, "model.layers.4.post_attention_norm.bias").shape, ElementsAre(8));
}

TEST(ChunkLayout, BiasesStandWhereTheyAreAskedFor) {
  ModelConfig config = SmallConfig();
  config.norm = ops::NormKind::kRmsNorm;
  config.mlp_bias = false;
  const ChunkLayout attention(config, *MakeChunkRange(config, 1, 0));
  EXPECT_THAT(Named(attention, "model.layers.1.attn.qkv.bias").shape, ElementsAre(16));
  EXPECT_THAT(Named(attention, "model.layers.1.attn.out.bias").shape, ElementsAre(8));
  EXPECT_EQ(attention.Find("model.layers.1.mlp.up.bias"), -1);
  EXPECT_EQ(attention.Find("model.layers.1.input_norm.bias"), -1);
  config.attention_bias = config.qkv_bias = false;
  config.mlp_bias = true;
  const ChunkLayout mlp(config, *MakeChunkRange(config, 1, 0));
  EXPECT_EQ(mlp.Find("model.layers.1.attn.qkv.bias"), -1);
  EXPECT_THAT(Named(mlp, "model.layers.1.mlp.down.bias").shape, ElementsAre(8));
}

TEST(ChunkLayout, HeadsMayBeWiderThanTheirShareOfTheHiddenSize) {
  ModelConfig config = SmallConfig();
  config.head_dim = 3;
  const ChunkLayout layout(config, *MakeChunkRange(config, 1, 0));
  EXPECT_THAT(Named(layout, "model.layers.0.attn.qkv.weight").shape, ElementsAre(24, 8));
  EXPECT_THAT(Named(layout, "model.layers.0.attn.out.weight").shape, ElementsAre(8, 12));
}

TEST(ChunkLayout, ShardsAreEqualAlignedAndCoverEverySliceOnce) {
  const ModelConfig config = SmallConfig();
  const ChunkLayout layout(config, *MakeChunkRange(config, 2, 1));
  for (const int num_shards : {1, 2, 3, 7, 64}) {
    for (const int64_t bucket_size : {0, 1, 700, 1000, 100'000}) {
      std::vector<int64_t> covered(layout.parameters().size(), 0);
      std::vector<Bucket> buckets = layout.Buckets(num_shards, bucket_size);
      std::reverse(buckets.begin(), buckets.end());
      int64_t next = 0;
      for (const Bucket& bucket : buckets) {
        EXPECT_EQ(bucket.range.begin, next);
        EXPECT_GT(bucket.range.count, 0);
        for (int i = 0; i < num_shards; ++i) {
          const FlatRange shard = SplitEvenly(bucket.range, num_shards, i);
          EXPECT_EQ(shard.begin, next);
          EXPECT_EQ(shard.count % 64, 0);
          for (const ParameterSlice& slice : layout.SlicesOf(shard)) {
            EXPECT_GT(slice.count, 0);
            EXPECT_EQ(slice.begin, covered[slice.parameter_index]);
            covered[slice.parameter_index] += slice.count;
          }
          next += shard.count;
        }
      }
      EXPECT_EQ(next, layout.padded_elements(num_shards));
      EXPECT_GE(next, layout.num_elements());
      for (size_t i = 0; i < covered.size(); ++i) {
        EXPECT_EQ(covered[i], layout.parameters()[i].size);
      }
    }
  }
}

// Returns the chunk's layer to which a parameter belongs: the head counts with the last layer,
// embeddings with the first.
int LayerOf(const Parameter& parameter, const ChunkRange& range) {
  for (int layer = 0; layer < range.num_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(range.first_layer + layer) + ".";
    if (parameter.name.starts_with(prefix)) return layer;
  }
  return parameter.name.starts_with("model.embed") ? 0 : range.num_layers - 1;
}

TEST(ChunkLayout, ABucketIsMadeOnceBackwardHasGoneThroughItsLayers) {
  const ModelConfig config = SmallConfig();
  for (int num_chunks = 1; num_chunks <= 3; ++num_chunks) {
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      const ChunkRange range = *MakeChunkRange(config, num_chunks, chunk);
      const ChunkLayout layout(config, range);
      for (const int num_shards : {1, 3, 40}) {
        for (const int64_t bucket_size : {1, 700, 1500}) {
          int before = range.num_layers;
          const std::vector<Bucket> buckets = layout.Buckets(num_shards, bucket_size);
          for (const Bucket& bucket : buckets) {
            EXPECT_LT(bucket.first_layer, before);
            before = bucket.first_layer;
            for (const ParameterSlice& slice : layout.SlicesOf(bucket.range)) {
              EXPECT_GE(LayerOf(layout.parameters()[slice.parameter_index], range),
                        bucket.first_layer);
            }
            if (&bucket == &buckets.back()) continue;
            EXPECT_GE(bucket.range.count, bucket_size);
          }
          EXPECT_EQ(before, 0);
        }
      }
    }
  }
}

TEST(ChunkLayout, ALayerMakesABucketWhereItHasTheSize) {
  const ModelConfig config = SmallConfig();
  const ChunkLayout layout(config, *MakeChunkRange(config, 1, 0));
  const auto first_layers = [&](int64_t bucket_size) {
    std::vector<int> layers;
    for (const Bucket& bucket : layout.Buckets(2, bucket_size)) {
      layers.push_back(bucket.first_layer);
    }
    return layers;
  };
  EXPECT_THAT(first_layers(0), ElementsAre(0));
  EXPECT_THAT(first_layers(1), ElementsAre(4, 3, 2, 1, 0));
  EXPECT_THAT(first_layers(layout.num_elements()), ElementsAre(0));
  const int64_t layer = Named(layout, "model.layers.1.input_norm.weight").offset -
                        Named(layout, "model.layers.0.input_norm.weight").offset;
  // The head counts with the last layer.
  EXPECT_THAT(first_layers(2 * layer - 128), ElementsAre(3, 1, 0));
}

// Returns a config that four tensor ranks can cut evenly.
ModelConfig CuttableConfig() {
  ModelConfig config = SmallConfig();
  config.vocab_size = 12;
  config.num_heads = 8;
  config.num_kv_heads = 4;
  config.activation = ops::ActivationKind::kSwiGlu;
  return config;
}

ChunkLayout LayoutAt(const ModelConfig& config, TensorPlace place) {
  return ChunkLayout(config, *MakeChunkRange(config, 1, 0), place);
}

TEST(ChunkLayout, OneTensorRankHasEachParameterInOneBox) {
  const ChunkLayout layout = LayoutAt(CuttableConfig(), {});
  for (const Parameter& parameter : layout.parameters()) {
    EXPECT_EQ(parameter.shape, parameter.global_shape);
    EXPECT_FALSE(parameter.replicated);
    ASSERT_EQ(parameter.boxes.size(), 1u);
    EXPECT_EQ(parameter.boxes[0].shape, parameter.shape);
    EXPECT_EQ(parameter.boxes[0].count, parameter.size);
    EXPECT_EQ(GlobalIndex(parameter, parameter.boxes[0], parameter.size - 1), parameter.size - 1);
  }
}

TEST(ChunkLayout, TensorRanksCutRowsOfQueriesKeysAndValuesEachForItself) {
  const ChunkLayout layout = LayoutAt(CuttableConfig(), {.size = 2, .index = 1});
  const Parameter& qkv = Named(layout, "model.layers.3.attn.qkv.weight");
  EXPECT_THAT(qkv.shape, ElementsAre(16, 8));
  EXPECT_THAT(qkv.global_shape, ElementsAre(32, 8));
  ASSERT_EQ(qkv.boxes.size(), 3u);
  EXPECT_THAT(qkv.boxes[0].offset, ElementsAre(8, 0));
  EXPECT_THAT(qkv.boxes[1].offset, ElementsAre(20, 0));
  EXPECT_THAT(qkv.boxes[2].offset, ElementsAre(28, 0));
  EXPECT_THAT(qkv.boxes[0].shape, ElementsAre(8, 8));
  EXPECT_THAT(qkv.boxes[2].shape, ElementsAre(4, 8));
  EXPECT_EQ(qkv.boxes[1].begin, 64);
  EXPECT_EQ(qkv.boxes[1].count, 32);
  EXPECT_EQ(GlobalIndex(qkv, qkv.boxes[1], 9), 21 * 8 + 1);
  const Parameter& bias = Named(layout, "model.layers.3.attn.qkv.bias");
  ASSERT_EQ(bias.boxes.size(), 3u);
  EXPECT_THAT(bias.boxes[2].offset, ElementsAre(28));
  EXPECT_FALSE(bias.replicated);
  EXPECT_EQ(Named(layout, "model.layers.3.mlp.up.weight").boxes.size(), 2u);
}

TEST(ChunkLayout, TensorRanksCutColumnsOfWhatWritesToTheStreamAndCopyTheRest) {
  const ChunkLayout layout = LayoutAt(CuttableConfig(), {.size = 4, .index = 2});
  const Parameter& down = Named(layout, "model.layers.0.mlp.down.weight");
  EXPECT_THAT(down.shape, ElementsAre(8, 3));
  ASSERT_EQ(down.boxes.size(), 1u);
  EXPECT_THAT(down.boxes[0].offset, ElementsAre(0, 6));
  EXPECT_EQ(GlobalIndex(down, down.boxes[0], 4), 1 * 12 + 7);
  EXPECT_THAT(Named(layout, "lm_head.weight").boxes[0].offset, ElementsAre(6, 0));
  std::set<std::string> replicated;
  for (const Parameter& parameter : layout.parameters()) {
    if (!parameter.replicated) continue;
    EXPECT_EQ(parameter.shape, parameter.global_shape);
    replicated.insert(parameter.name);
  }
  EXPECT_TRUE(replicated.contains("model.embed_positions.weight"));
  EXPECT_TRUE(replicated.contains("model.layers.4.mlp.down.bias"));
  EXPECT_TRUE(replicated.contains("model.norm.weight"));
  EXPECT_EQ(replicated.size(), 1u + 5 * 6 + 2);
}

TEST(ChunkLayout, RanksShareAHeadWhereThereAreFewerKeyValueHeads) {
  ModelConfig config = CuttableConfig();
  config.num_heads = 8, config.num_kv_heads = 2;
  EXPECT_TRUE(CutsEvenly(config, 4));
  EXPECT_EQ(PartOfTensorRank(config, 4).num_kv_heads, 1);
  const int64_t head = config.head_dim, queries = 8 * head, keys = 2 * head;
  for (int index = 0; index < 4; ++index) {
    const ChunkLayout layout = LayoutAt(config, {.size = 4, .index = index});
    const Parameter& qkv = Named(layout, "model.layers.0.attn.qkv.weight");
    EXPECT_FALSE(qkv.replicated);
    ASSERT_EQ(qkv.boxes.size(), 3u);
    EXPECT_EQ(qkv.boxes[0].num_copies, 1);
    EXPECT_EQ(qkv.boxes[1].offset[0], queries + index / 2 * head);
    EXPECT_EQ(qkv.boxes[2].offset[0], queries + keys + index / 2 * head);
    for (const int part : {1, 2}) {
      EXPECT_EQ(qkv.boxes[part].shape[0], head);
      EXPECT_EQ(qkv.boxes[part].num_copies, 2);
      EXPECT_EQ(qkv.boxes[part].copy, index % 2);
    }
  }
}

void ExpectSlicesCoverOnce(const ModelConfig& config) {
  const ChunkLayout whole = LayoutAt(config, {});
  std::vector<std::vector<int>> times;
  for (const Parameter& parameter : whole.parameters()) times.emplace_back(parameter.size, 0);
  for (int index = 0; index < 4; ++index) {
    const ChunkLayout layout = LayoutAt(config, {.size = 4, .index = index});
    for (int shard = 0; shard < 3; ++shard) {
      const FlatRange range = SplitEvenly({0, layout.padded_elements(3)}, 3, shard);
      for (const ParameterSlice& slice : layout.SlicesOf(range)) {
        const Parameter& parameter = layout.parameters()[slice.parameter_index];
        const ParameterBox& box = parameter.boxes[slice.box_index];
        if (box.copy > 0) continue;
        EXPECT_EQ(slice.begin, box.begin + slice.begin_in_box);
        EXPECT_LE(slice.begin_in_box + slice.count, box.count);
        for (int64_t i = 0; i < slice.count; ++i) {
          ++times[slice.parameter_index][GlobalIndex(parameter, box, slice.begin_in_box + i)];
        }
      }
    }
  }
  for (const std::vector<int>& tensor : times) EXPECT_THAT(tensor, testing::Each(1));
}

TEST(ChunkLayout, SlicesOfTensorRanksCoverEachElementOfTheModelOnce) {
  ModelConfig config = CuttableConfig();
  ExpectSlicesCoverOnce(config);
  config.num_heads = 8;
  for (const int kv_heads : {1, 2}) {
    config.num_kv_heads = kv_heads;
    ExpectSlicesCoverOnce(config);
  }
}

TEST(ChunkLayout, HasTheSizesOfATensorRanksPartOfTheConfig) {
  const ModelConfig config = CuttableConfig();
  EXPECT_TRUE(CutsEvenly(config, 4));
  EXPECT_FALSE(CutsEvenly(config, 3));
  const ChunkLayout cut = LayoutAt(config, {.size = 4, .index = 1});
  const ChunkLayout part = LayoutAt(PartOfTensorRank(config, 4), {});
  ASSERT_EQ(cut.parameters().size(), part.parameters().size());
  for (size_t i = 0; i < part.parameters().size(); ++i) {
    EXPECT_EQ(cut.parameters()[i].shape, part.parameters()[i].shape) << part.parameters()[i].name;
    EXPECT_EQ(cut.parameters()[i].offset, part.parameters()[i].offset);
  }
}

}  // namespace
}  // namespace megascale::model
