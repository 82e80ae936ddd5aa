#include "runtime/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/job.pb.h"
#include "runtime/model/chunk_layout.h"

namespace megascale::model {
namespace {

using testing::HasSubstr;

job::v1::ModelSpec SmallSpec() {
  job::v1::ModelSpec spec;
  spec.set_hidden_size(64);
  spec.set_num_hidden_layers(3);
  spec.set_num_attention_heads(4);
  spec.set_max_position_embeddings(128);
  return spec;
}

void ExpectRefused(const job::v1::ModelSpec& spec, const std::string& field) {
  const auto config = MakeModelConfig(spec);
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("model." + field));
}

TEST(MakeModelConfig, TakesTheDocumentedDefaultsForZeros) {
  const auto config = MakeModelConfig(SmallSpec());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 256);
  EXPECT_EQ(config->num_kv_heads, 4);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->intermediate_size, 256);
  EXPECT_EQ(config->position, PositionKind::kLearned);
  EXPECT_EQ(config->norm, ops::NormKind::kLayerNorm);
  EXPECT_EQ(config->activation, ops::ActivationKind::kGeluTanh);
  EXPECT_EQ(config->norm_eps, 1e-5);
  EXPECT_EQ(config->init_range, 0.02);
  EXPECT_EQ(config->rope_theta, 10000);
  EXPECT_EQ(config->rotary_dim, 16);
  EXPECT_TRUE(config->shared_norm);
  EXPECT_TRUE(config->attention_bias);
  EXPECT_TRUE(config->mlp_bias);
}

TEST(MakeModelConfig, GivesBiasesToTheFamiliesThatHaveThem) {
  job::v1::ModelSpec spec = SmallSpec();
  spec.set_norm(job::v1::NORM_RMSNORM);
  EXPECT_FALSE(MakeModelConfig(spec)->attention_bias);
  EXPECT_FALSE(MakeModelConfig(spec)->mlp_bias);
  spec.set_attention_bias(true);
  EXPECT_TRUE(MakeModelConfig(spec)->attention_bias);
  EXPECT_FALSE(MakeModelConfig(spec)->mlp_bias);
  spec = SmallSpec();
  spec.set_mlp_bias(false);
  EXPECT_TRUE(MakeModelConfig(spec)->attention_bias);
  EXPECT_FALSE(MakeModelConfig(spec)->mlp_bias);
}

TEST(MakeModelConfig, TurnsAPartOfEachHeadAsNeoX) {
  job::v1::ModelSpec spec = SmallSpec();
  spec.set_position_embedding(job::v1::POSITION_EMBEDDING_ROTARY);
  spec.set_partial_rotary_factor(0.25);
  spec.set_parallel_block(true);
  spec.set_num_ln_in_parallel_attn(2);
  const auto config = MakeModelConfig(spec);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rotary_dim, 4);
  EXPECT_TRUE(config->has_mlp_norm());
}

TEST(MakeModelConfig, TakesAHeadSizeThatIsNotAShareOfTheHiddenSize) {
  job::v1::ModelSpec spec = SmallSpec();
  spec.set_num_attention_heads(5);
  spec.set_head_dim(24);
  const auto config = MakeModelConfig(spec);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 24);
  EXPECT_EQ(config->qkv_size(), 3 * 5 * 24);
}

TEST(MakeModelConfig, NamesTheFieldThatDoesNotFit) {
  job::v1::ModelSpec spec = SmallSpec();
  spec.set_hidden_size(0);
  ExpectRefused(spec, "hidden_size");
  spec = SmallSpec();
  spec.set_num_attention_heads(5);
  ExpectRefused(spec, "num_attention_heads");
  spec = SmallSpec();
  spec.set_num_key_value_heads(3);
  ExpectRefused(spec, "num_key_value_heads");
  spec = SmallSpec();
  spec.set_max_position_embeddings(0);
  ExpectRefused(spec, "max_position_embeddings");
  spec = SmallSpec();
  spec.set_sliding_window(-1);
  ExpectRefused(spec, "sliding_window");
  spec = SmallSpec();
  spec.add_layer_types("full_attention");
  ExpectRefused(spec, "layer_types");
  spec.add_layer_types("chunked_attention");
  spec.add_layer_types("full_attention");
  ExpectRefused(spec, "layer_types");
  spec = SmallSpec();
  spec.set_num_attention_heads(64);
  spec.set_position_embedding(job::v1::POSITION_EMBEDDING_ROTARY);
  ExpectRefused(spec, "partial_rotary_factor");
  spec = SmallSpec();
  spec.set_position_embedding(job::v1::POSITION_EMBEDDING_ROTARY);
  spec.set_partial_rotary_factor(1.5);
  ExpectRefused(spec, "partial_rotary_factor");
  spec = SmallSpec();
  spec.set_norm_eps(-1);
  ExpectRefused(spec, "norm_eps");
}

TEST(MakeModelConfig, GivesEachLayerItsWindow) {
  job::v1::ModelSpec spec = SmallSpec();
  spec.set_sliding_window(5);
  EXPECT_EQ(MakeModelConfig(spec)->WindowOf(2), 5);
  for (const char* type : {"full_attention", "sliding_attention", "full_attention"}) {
    spec.add_layer_types(type);
  }
  const ModelConfig config = *MakeModelConfig(spec);
  EXPECT_EQ(config.WindowOf(0), 0);
  EXPECT_EQ(config.WindowOf(1), 5);
  EXPECT_EQ(config.WindowOf(2), 0);
}

TEST(NumParameters, IsThatOfGpt2) {
  job::v1::ModelSpec spec;
  spec.set_vocab_size(50257);
  spec.set_hidden_size(768);
  spec.set_num_hidden_layers(12);
  spec.set_num_attention_heads(12);
  spec.set_max_position_embeddings(1024);
  spec.set_tie_word_embeddings(true);
  EXPECT_EQ(NumParameters(*MakeModelConfig(spec)), 124439808);
}

TEST(TrainFlopsPerToken, CountsMatricesAndVisibleKeys) {
  const ModelConfig config = *MakeModelConfig(SmallSpec());
  const double matrices = 3 * (64 * 192 + 64 * 64 + 2 * 64 * 256) + 64 * 256;
  // At length 4 the queries see 1, 2, 3 and 4 keys: 2.5 on average.
  EXPECT_DOUBLE_EQ(TrainFlopsPerToken(config, 4), 3 * (2 * matrices + 3 * 4 * 64 * 2.5));
}

TEST(TrainFlopsPerToken, CountsOnlyTheWindow) {
  ModelConfig config = *MakeModelConfig(SmallSpec());
  const double full = TrainFlopsPerToken(config, 4);
  config.window = 2;  // 1, 2, 2 and 2 keys
  EXPECT_DOUBLE_EQ(full - TrainFlopsPerToken(config, 4), 3 * 3 * 4 * 64 * (2.5 - 1.75));
  config.full_layers = {true, false, true};
  EXPECT_DOUBLE_EQ(full - TrainFlopsPerToken(config, 4), 3 * 1 * 4 * 64 * (2.5 - 1.75));
  config.window = 100;
  EXPECT_DOUBLE_EQ(TrainFlopsPerToken(config, 4), full);
}

}  // namespace
}  // namespace megascale::model
