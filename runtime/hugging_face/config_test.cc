#include "runtime/hugging_face/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/hugging_face/folder.h"

namespace megascale::hugging_face {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The fields that every Llama-like configuration has, and `more`.
std::string Text(const std::string& architecture, const std::string& more) {
  return absl::StrCat(R"({"architectures": [")", architecture, R"("], "vocab_size": 100,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4)",
                      more.empty() ? "" : ", ", more, "}");
}

job::v1::ModelSpec ModelOf(const std::string& architecture, const std::string& more) {
  const auto config = ParseConfig(Text(architecture, more), "config.json");
  EXPECT_EQ(config.status(), absl::OkStatus());
  return config.ok() ? config->model : job::v1::ModelSpec();
}

std::string ErrorOf(const std::string& text) {
  const auto config = ParseConfig(text, "config.json");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

TEST(HuggingFaceConfig, AnUnknownArchitectureIsNamed) {
  EXPECT_EQ(ErrorOf(Text("FalconForCausalLM", "")),
            "config.json: the architecture is FalconForCausalLM, which this program does not have: "
            "expected one of GPT2LMHeadModel, GPTNeoXForCausalLM, LlamaForCausalLM, "
            "MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM");
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("the architecture is missing"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("config.json: is no JSON object"));
  EXPECT_THAT(ErrorOf("{\"vocab"), HasSubstr("config.json: is no JSON object"));
}

TEST(HuggingFaceConfig, ADeeplyNestedFileIsRefused) {
  const std::string deep(size_t{1} << 19, '[');
  const std::string closed = deep + std::string(deep.size(), ']');
  const std::string message = "config.json: is nested more than 32 levels deep; expected fewer";
  for (const std::string& value : {deep, closed}) {
    EXPECT_EQ(ErrorOf(value), message);
    EXPECT_EQ(ErrorOf(Text("LlamaForCausalLM", absl::StrCat(R"("head_dim": )", value))), message);
  }
  EXPECT_EQ(ParseIndex(deep, "config.json").status().message(), message);
  // Brackets within a text are no levels.
  const std::string quoted = absl::StrCat(R"("_name": "\\\"", )", "\"_path\": \"", deep, "\"");
  EXPECT_EQ(ModelOf("LlamaForCausalLM", quoted).vocab_size(), 100);
}

TEST(HuggingFaceConfig, AModelTypeAloneIsEnough) {
  EXPECT_EQ(ParseConfig(R"({"model_type": "gpt2", "vocab_size": 9, "n_embd": 8, "n_layer": 1,
                            "n_head": 2})",
                        "config.json")
                ->architecture,
            Architecture::kGpt2);
}

TEST(HuggingFaceConfig, MissingFieldsHaveTheDefaultsOfTheFamily) {
  EXPECT_EQ(ModelOf("LlamaForCausalLM", "").num_key_value_heads(), 4);
  EXPECT_EQ(ModelOf("LlamaForCausalLM", "").norm_eps(), 1e-6);
  EXPECT_EQ(ModelOf("MistralForCausalLM", R"("num_key_value_heads": 2)").sliding_window(), 4096);
  EXPECT_EQ(ModelOf("Qwen3ForCausalLM", R"("num_key_value_heads": 2)").head_dim(), 128);
  EXPECT_EQ(ModelOf("GPTNeoXForCausalLM", "").partial_rotary_factor(), 0.25);
  EXPECT_TRUE(ParseConfig(R"({"architectures": ["GPT2LMHeadModel"], "vocab_size": 9, "n_embd": 8,
                              "n_layer": 1, "n_head": 2})",
                          "c")
                  ->model.tie_word_embeddings());
}

TEST(HuggingFaceConfig, AWindowOfQwenIsOfAllLayersOrOfNone) {
  const std::string heads = R"("num_key_value_heads": 2, )";
  const auto window = [&](const std::string& more) {
    return ModelOf("Qwen2ForCausalLM", heads + more).sliding_window();
  };
  EXPECT_EQ(window(R"("sliding_window": 16)"), 0);
  EXPECT_EQ(window(R"("use_sliding_window": true, "sliding_window": 16)"), 0);  // from layer 28 on
  EXPECT_EQ(window(R"("use_sliding_window": true, "sliding_window": 16, "max_window_layers": 0)"),
            16);
  EXPECT_THAT(ErrorOf(Text("Qwen2ForCausalLM", heads + R"("use_sliding_window": true,
                           "sliding_window": 16, "max_window_layers": 3)")),
              HasSubstr("max_window_layers is 3: expected 0, or at least num_hidden_layers = 4"));
}

TEST(HuggingFaceConfig, BothSpellingsOfRotaryOptionsAreRead) {
  const auto older = ModelOf("LlamaForCausalLM", R"("rope_theta": 5e5, "rope_scaling":
    {"type": "linear", "factor": 2.0})");
  const auto newer = ModelOf("LlamaForCausalLM", R"("rope_parameters":
    {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0})");
  EXPECT_EQ(older.rope_theta(), 5e5);
  EXPECT_EQ(older.rope_scaling().rope_type(), job::v1::ROPE_TYPE_LINEAR);
  EXPECT_EQ(older.DebugString(), newer.DebugString());
}

TEST(HuggingFaceConfig, WhatRopeParametersLeaveOutIsInTheOlderFields) {
  const auto llama = ModelOf("LlamaForCausalLM", R"("rope_theta": 5e5,
    "rope_parameters": {"rope_type": "linear", "factor": 2}, "rope_scaling": null)");
  EXPECT_EQ(llama.rope_theta(), 5e5);
  EXPECT_EQ(llama.rope_scaling().factor(), 2);
  const auto neox = ModelOf("GPTNeoXForCausalLM", R"("rotary_pct": 0.5, "rotary_emb_base": 3e4,
    "rope_parameters": {"rope_type": "default"})");
  EXPECT_EQ(neox.partial_rotary_factor(), 0.5);
  EXPECT_EQ(neox.rope_theta(), 3e4);
  EXPECT_EQ(ModelOf("LlamaForCausalLM", R"("rope_theta": 5e5,
                    "rope_parameters": {"rope_theta": 7})")
                .rope_theta(),
            7);
}

TEST(HuggingFaceConfig, BothSpellingsOfAScalingMustAgree) {
  const std::string older = R"("rope_scaling": {"type": "linear", "factor": 2.0}, )";
  EXPECT_EQ(ModelOf("LlamaForCausalLM", older + R"("rope_parameters":
                    {"rope_theta": 5e5, "rope_type": "linear", "factor": 2})")
                .rope_scaling()
                .factor(),
            2);
  EXPECT_EQ(ErrorOf(Text("LlamaForCausalLM",
                         older + R"("rope_parameters": {"rope_type": "linear", "factor": 4})")),
            "config.json: rope_scaling has {rope_type: ROPE_TYPE_LINEAR factor: 2}, "
            "rope_parameters has {rope_type: ROPE_TYPE_LINEAR factor: 4}: expected one of them, "
            "or equal ones");
  EXPECT_THAT(ErrorOf(Text("LlamaForCausalLM", older + R"("rope_parameters": {"rope_theta": 9})")),
              HasSubstr("rope_parameters has no scaling"));
}

TEST(HuggingFaceConfig, DropoutIsIgnoredWithAWarning) {
  const auto config =
      ParseConfig(Text("LlamaForCausalLM", R"("attention_dropout": 0.1)"), "config.json");
  EXPECT_THAT(config->warnings, ElementsAre("config.json: attention_dropout is 0.1: ignored, this "
                                            "program trains without dropout"));
}

TEST(HuggingFaceConfig, WhatIsComputedDifferentlyIsRefusedByName) {
  const std::pair<const char*, const char*> mistakes[] = {
      {R"("hidden_act": "relu")", "hidden_act is \"relu\": expected silu"},
      {R"("rope_scaling": {"rope_type": "longrope"})",
       "rope_scaling.rope_type is \"longrope\": expected default, linear, llama3 or yarn"},
      {R"("rope_scaling": {"rope_type": "yarn", "factor": 0.5})",
       "rope_scaling.factor is 0.5: expected a number of at least 1"},
      {R"("rope_theta": "much")", "rope_theta is \"much\": expected a number"},
      {R"("num_key_value_heads": -2)",
       "num_key_value_heads is -2: expected a whole number from 1 to 2147483647"},
      {R"("num_key_value_heads": 99999999999)",
       "num_key_value_heads is 99999999999: expected a whole number from 1 to 2147483647"},
      {R"("tie_word_embeddings": 1)", "tie_word_embeddings is 1: expected true or false"},
      {R"("quantization_config": {"bits": 4})", "quantization_config is an object: expected none"},
      {R"("head_dim": [4])", "head_dim is an array: expected a whole number"},
      {R"("pretraining_tp": 2)", "pretraining_tp is 2: expected 1"},
  };
  for (const auto& [more, message] : mistakes) {
    EXPECT_THAT(ErrorOf(Text("LlamaForCausalLM", more)), HasSubstr(message));
  }
  EXPECT_THAT(ErrorOf(R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 9})"),
              HasSubstr("config.json: hidden_size is missing: expected a whole number"));
}

TEST(HuggingFaceConfig, AModelOfNoArchitectureIsNotWritten) {
  job::v1::ModelSpec model = ModelOf("LlamaForCausalLM", "");
  model.set_parallel_block(true);
  EXPECT_EQ(WriteConfig(model, "float32").status().code(), absl::StatusCode::kInvalidArgument);
  model = ModelOf("Qwen3ForCausalLM", R"("num_key_value_heads": 2)");
  model.set_mlp_bias(true);
  EXPECT_EQ(WriteConfig(model, "float32").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace megascale::hugging_face
