#include "runtime/hugging_face/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/model/config.h"

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
            "MistralForCausalLM, MinistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM");
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

// Returns the window of each of the four layers.
std::vector<int64_t> Windows(const std::string& architecture, const std::string& more) {
  const job::v1::ModelSpec model =
      ModelOf(architecture, absl::StrCat(R"("num_key_value_heads": 2, )", more));
  std::vector<int64_t> windows;
  const auto config = model::MakeModelConfig(model);
  EXPECT_EQ(config.status(), absl::OkStatus());
  for (int64_t i = 0; config.ok() && i < 4; ++i) windows.push_back(config->WindowOf(i));
  return windows;
}

// As in `transformers`: modeling_qwen2.py and modeling_ministral.py mask each layer by its word.
TEST(HuggingFaceConfig, LayerTypesAloneSayWhichLayersHaveTheWindow) {
  const std::string mixed = R"("layer_types": ["sliding_attention", "full_attention",
                              "full_attention", "sliding_attention"])";
  const std::string sliding = R"("layer_types": ["sliding_attention", "sliding_attention",
                                "sliding_attention", "sliding_attention"])";
  const std::string full = R"("layer_types": ["full_attention", "full_attention",
                             "full_attention", "full_attention"])";
  for (const char* architecture : {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    const std::string on = R"("use_sliding_window": true, "sliding_window": 6, )";
    EXPECT_THAT(Windows(architecture, on + mixed), ElementsAre(6, 0, 0, 6));
    EXPECT_THAT(Windows(architecture, on + R"("max_window_layers": 28, )" + sliding),
                ElementsAre(6, 6, 6, 6));
    EXPECT_THAT(Windows(architecture, on + R"("max_window_layers": 0, )" + full),
                ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(Windows(architecture, R"("sliding_window": 6, )" + full), ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(ErrorOf(Text(architecture,
                             R"("use_sliding_window": false, "sliding_window": 6, )" + mixed)),
                HasSubstr("use_sliding_window is false: expected true, since layer_types has "
                          "sliding_attention"));
  }
  for (const char* architecture : {"MistralForCausalLM", "MinistralForCausalLM"}) {
    EXPECT_THAT(Windows(architecture, R"("sliding_window": 6, )" + mixed), ElementsAre(6, 0, 0, 6));
    EXPECT_THAT(Windows(architecture, mixed), ElementsAre(4096, 0, 0, 4096));
    EXPECT_THAT(Windows(architecture, R"("sliding_window": null, )" + full),
                ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(ErrorOf(Text(architecture, R"("sliding_window": null, )" + mixed)),
                HasSubstr("sliding_window is missing: expected a window, since layer_types has"));
  }
  EXPECT_THAT(Windows("LlamaForCausalLM", full), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(ErrorOf(Text("LlamaForCausalLM", mixed)),
              HasSubstr("layer_types is an array: expected full_attention in every layer, since "
                        "LlamaForCausalLM has no window"));
  EXPECT_THAT(
      ErrorOf(Text("LlamaForCausalLM", R"("sliding_window": 6)")),
      HasSubstr("sliding_window is 6: expected none, since LlamaForCausalLM has no window"));
}

TEST(HuggingFaceConfig, LayerTypesThatAreNotOneWordForEachLayerAreRefused) {
  const std::string on = R"("use_sliding_window": true, "sliding_window": 6, )";
  EXPECT_THAT(ErrorOf(Text("Qwen2ForCausalLM", on + R"("layer_types": ["full_attention"])")),
              HasSubstr("layer_types has 1 words: expected one for each of num_hidden_layers = 4"));
  EXPECT_THAT(ErrorOf(Text("Qwen2ForCausalLM", on + R"("layer_types": ["full_attention",
                           "chunked_attention", "full_attention", "full_attention"])")),
              HasSubstr("layer_types has chunked_attention: expected full_attention or"));
  EXPECT_THAT(ErrorOf(Text("Qwen2ForCausalLM", on + R"("layer_types": "full_attention")")),
              HasSubstr("layer_types is \"full_attention\": expected a list of texts"));
}

TEST(HuggingFaceConfig, AWindowOfQwenIsOfTheLayersFromMaxWindowLayersOn) {
  const std::string heads = R"("num_key_value_heads": 2, )";
  const auto window = [&](const std::string& more) {
    return ModelOf("Qwen2ForCausalLM", heads + more).sliding_window();
  };
  EXPECT_EQ(window(R"("sliding_window": 16)"), 0);
  EXPECT_EQ(window(R"("use_sliding_window": true, "sliding_window": 16)"), 0);  // from layer 28 on
  EXPECT_EQ(window(R"("use_sliding_window": true, "sliding_window": 16, "max_window_layers": 0)"),
            16);
  EXPECT_THAT(Windows("Qwen2ForCausalLM", R"("use_sliding_window": true, "sliding_window": 16,
                      "max_window_layers": 3)"),
              ElementsAre(0, 0, 0, 16));
}

TEST(HuggingFaceConfig, WindowsByLayerAreWrittenForEachFamily) {
  for (const char* architecture :
       {"MinistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    const job::v1::ModelSpec model = ModelOf(architecture, R"("num_key_value_heads": 2,
        "head_dim": 16, "use_sliding_window": true, "sliding_window": 6, "layer_types":
        ["full_attention", "full_attention", "sliding_attention", "full_attention"])");
    const auto written = WriteConfig(model, "float32");
    ASSERT_EQ(written.status(), absl::OkStatus());
    EXPECT_THAT(*written, HasSubstr(architecture));
    const auto again = ParseConfig(*written, "written");
    ASSERT_EQ(again.status(), absl::OkStatus());
    EXPECT_EQ(again->model.DebugString(), model.DebugString());
    EXPECT_EQ(again->warnings.size(), 0u);
  }
}

// The factors of modeling_rope_utils.py.
TEST(HuggingFaceConfig, YarnIsReadInEachOfItsForms) {
  const auto yarn = [](const std::string& section, const std::string& beside = "") {
    return ModelOf("LlamaForCausalLM",
                   absl::StrCat(R"("max_position_embeddings": 64, "rope_scaling":
                                   {"rope_type": "yarn", "factor": 4.0)",
                                section, "}", beside))
        .rope_scaling();
  };
  EXPECT_NEAR(yarn("").attention_factor(), 0.1 * std::log(4) + 1, 1e-12);
  EXPECT_NEAR(yarn(R"(, "mscale": 1.0)").attention_factor(), 0.1 * std::log(4) + 1, 1e-12);
  EXPECT_EQ(yarn(R"(, "mscale": 0.7, "mscale_all_dim": 0.7)").attention_factor(), 1);
  EXPECT_NEAR(yarn(R"(, "mscale": 1.0, "mscale_all_dim": 0.5)").attention_factor(),
              (0.1 * std::log(4) + 1) / (0.05 * std::log(4) + 1), 1e-12);
  EXPECT_EQ(
      yarn(R"(, "mscale": 1, "mscale_all_dim": 0.5, "attention_factor": 1.5)").attention_factor(),
      1.5);
  EXPECT_FALSE(yarn(R"(, "truncate": true)").has_truncate());
  EXPECT_TRUE(yarn(R"(, "truncate": false)").has_truncate());
  EXPECT_EQ(yarn("").original_max_position_embeddings(), 64);
  EXPECT_EQ(
      yarn("", R"(, "original_max_position_embeddings": 16)").original_max_position_embeddings(),
      16);
  EXPECT_EQ(yarn(R"(, "original_max_position_embeddings": 16)",
                 R"(, "original_max_position_embeddings": 16)")
                .original_max_position_embeddings(),
            16);
  EXPECT_EQ(ModelOf("Qwen3ForCausalLM", R"("num_key_value_heads": 2,
                    "original_max_position_embeddings": 8, "rope_parameters":
                    {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0,
                     "high_freq_factor": 4.0, "rope_theta": 7e4})")
                .rope_scaling()
                .original_max_position_embeddings(),
            8);
}

TEST(HuggingFaceConfig, RotaryFieldsThatVersionsReadDifferentlyAreRefused) {
  const std::pair<const char*, const char*> mistakes[] = {
      {R"("original_max_position_embeddings": 8, "rope_scaling": {"rope_type": "yarn", "factor": 4,
          "original_max_position_embeddings": 16})",
       "rope_scaling.original_max_position_embeddings is 16: expected 8, as the field of this "
       "name"},
      {R"("rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 4})",
       "rope_scaling.rope_type is \"linear\": expected yarn, as type says"},
      {R"("rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4, "rope_theta": 1e4})",
       "rope_theta is 500000.0: expected 10000, as rope_scaling.rope_theta says"},
      {R"("rope_scaling": {"type": "yarn", "factor": 4, "attention_factor": 0})",
       "rope_scaling.attention_factor is 0: expected a number of more than 0"},
      {R"("rope_scaling": {"type": "yarn", "factor": 1e9, "mscale": 1e308, "mscale_all_dim": 1})",
       "rope_scaling.mscale is 1e+308: expected a number that gives a finite attention factor"},
      {R"("rope_parameters": {"full_attention": {"rope_type": "default"}})",
       "rope_parameters.full_attention is an object: expected one set of frequencies"},
      {R"("partial_rotary_factor": 0.5)", "partial_rotary_factor is 0.5: expected 1"},
      {R"("rope_scaling": {"type": "llama3", "factor": 4, "high_freq_factor": 1})",
       "rope_scaling.high_freq_factor is 1: expected more than low_freq_factor = 1"},
  };
  for (const auto& [more, message] : mistakes) {
    EXPECT_THAT(ErrorOf(Text("LlamaForCausalLM", more)), HasSubstr(message));
  }
  EXPECT_THAT(ErrorOf(Text("GPTNeoXForCausalLM", R"("rope_theta": 500)")),
              HasSubstr("rope_theta is 500: expected 10000"));
}

TEST(HuggingFaceConfig, ValuesThatMeanTheSameAreAccepted) {
  EXPECT_EQ(ModelOf("LlamaForCausalLM", R"("pretraining_tp": 2, "rope_scaling": {},
                    "rope_interleaved": false, "hidden_act": "swish", "pruned_heads": {},
                    "is_encoder_decoder": false, "quantization_config": null)")
                .DebugString(),
            ModelOf("LlamaForCausalLM", "").DebugString());
  EXPECT_EQ(ModelOf("LlamaForCausalLM", R"("rope_scaling": {"type": "linear", "factor": 1})")
                .rope_scaling()
                .factor(),
            1);
  for (const char* gelu : {"gelu", "gelu_python"}) {
    EXPECT_EQ(
        ModelOf("GPTNeoXForCausalLM", absl::StrCat(R"("hidden_act": ")", gelu, "\"")).hidden_act(),
        job::v1::ACTIVATION_GELU);
  }
  for (const char* gelu : {"gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh"}) {
    EXPECT_EQ(
        ModelOf("GPTNeoXForCausalLM", absl::StrCat(R"("hidden_act": ")", gelu, "\"")).hidden_act(),
        job::v1::ACTIVATION_GELU_TANH);
  }
  const auto gpt2 = ParseConfig(R"({"architectures": ["GPT2LMHeadModel"], "vocab_size": 9,
      "hidden_size": 8, "num_hidden_layers": 1, "n_head": 2, "num_attention_heads": 2})",
                                "c");
  EXPECT_EQ(gpt2.status(), absl::OkStatus());
  EXPECT_THAT(ErrorOf(R"({"architectures": ["GPT2LMHeadModel"], "vocab_size": 9, "n_embd": 8,
                         "hidden_size": 16, "n_layer": 1, "n_head": 2})"),
              HasSubstr("n_embd is 8: expected 16, as hidden_size says"));
}

TEST(HuggingFaceConfig, AFieldThatNobodyKnowsIsNamedInAWarning) {
  const auto warnings = [](const std::string& more) {
    return ParseConfig(Text("LlamaForCausalLM", more), "config.json")->warnings;
  };
  EXPECT_THAT(warnings(R"("logit_scale": 2.0)"),
              ElementsAre("config.json: logit_scale: ignored, no field of LlamaForCausalLM that "
                          "this program knows"));
  EXPECT_THAT(warnings(R"("b\n": 1, "attn_logit_softcapping": 30, "x": null)"),
              ElementsAre("config.json: attn_logit_softcapping, b\\n: ignored, no fields of "
                          "LlamaForCausalLM that this program knows"));
  std::string many = R"("f0": 1)";
  for (int i = 1; i < 20; ++i) absl::StrAppend(&many, ", \"f", i, "\": 1");
  EXPECT_THAT(warnings(many), ElementsAre(HasSubstr("and 12 more: ignored, no fields")));
  EXPECT_THAT(ParseConfig(Text("MistralForCausalLM", R"("attention_bias": true)"), "c")->warnings,
              ElementsAre(HasSubstr("attention_bias: ignored, no field of MistralForCausalLM")));
}

TEST(HuggingFaceConfig, AnotherFileInItsPlaceIsNamed) {
  EXPECT_EQ(ErrorOf("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n"),
            "config.json: is a pointer of Git LFS, not the file; fetch the file with `git lfs "
            "pull`");
  EXPECT_THAT(ErrorOf("\n<!DOCTYPE html><html>"), HasSubstr("config.json: is a web page"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("config.json: is empty"));
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
  const std::string older =
      R"("rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2},)";
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
  // Which of the two thetas is used depends on the version.
  EXPECT_THAT(ErrorOf(Text("LlamaForCausalLM", older + R"("rope_parameters":
                           {"rope_theta": 9, "rope_type": "linear", "factor": 2})")),
              HasSubstr("rope_scaling has theta 500000, rope_parameters has theta 9"));
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
      {R"("pruned_heads": {"0": [1]})", "pruned_heads is an object: expected none"},
      {R"("compression_config": {})", "compression_config is an object: expected none"},
      {R"("is_encoder_decoder": true)", "is_encoder_decoder is true: expected false"},
      {R"("rope_interleaved": true)", "rope_interleaved is true: expected false"},
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
