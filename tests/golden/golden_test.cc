// Compares our model with PyTorch and transformers: the loss and the gradient of every parameter of
// a toy GPT-2, NeoX, Llama and Mistral with the same weights and tokens. make_golden.py made the
// files.
//
//   Ops         loss, relative   gradient of each tensor   reason
//   float64     1e-12            1e-12                     float64 on both sides, other orders
//   CPU, F32    1e-6             1e-5                      24 bits, sums of some hundred terms
//   CPU, BF16   1e-2             1e-1                      8 bits; weights, activations rounded
//
// Gradients are measured by LargestTensorDistance.
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "proto/job.pb.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/format/safetensors.h"
#include "runtime/model/testing/test_pipeline.h"

namespace megascale::model {
namespace {

using tensor::DType;

constexpr int64_t kBatch = 2;
constexpr int64_t kSeq = 17;
constexpr int64_t kTokens = kBatch * kSeq;

// The layout of a Hugging Face tensor, relative to ours.
enum class Form {
  kSame,        // [out, in]; several are ours one below the other
  kTransposed,  // GPT-2's Conv1D: [in, out]
  kByHead,      // NeoX: the rows of query, key and value of each head, head by head
};

// One of our modules, and the Hugging Face modules of which it consists. '#' is the layer.
struct Module {
  std::string theirs;  // separated by spaces
  Form form = Form::kSame;
};

struct Family {
  std::string name;
  std::string spec;  // job.v1.ModelSpec
  std::map<std::string, Module> modules;
  std::string change = "";  // of the spec
};

Family Gpt2() {
  return {"gpt2",
          R"(vocab_size: 64 hidden_size: 32 num_hidden_layers: 2 num_attention_heads: 4
             intermediate_size: 64 max_position_embeddings: 32 tie_word_embeddings: true)",
          {{"model.embed_tokens", {"transformer.wte"}},
           {"model.embed_positions", {"transformer.wpe"}},
           {"model.layers.#.input_norm", {"transformer.h.#.ln_1"}},
           {"model.layers.#.attn.qkv", {"transformer.h.#.attn.c_attn", Form::kTransposed}},
           {"model.layers.#.attn.out", {"transformer.h.#.attn.c_proj", Form::kTransposed}},
           {"model.layers.#.post_attention_norm", {"transformer.h.#.ln_2"}},
           {"model.layers.#.mlp.up", {"transformer.h.#.mlp.c_fc", Form::kTransposed}},
           {"model.layers.#.mlp.down", {"transformer.h.#.mlp.c_proj", Form::kTransposed}},
           {"model.norm", {"transformer.ln_f"}}}};
}

Family NeoX() {
  return {
      "neox",
      R"(vocab_size: 64 hidden_size: 32 num_hidden_layers: 2 num_attention_heads: 2
             intermediate_size: 64 position_embedding: POSITION_EMBEDDING_ROTARY
             partial_rotary_factor: 0.25 hidden_act: ACTIVATION_GELU
             parallel_block: true num_ln_in_parallel_attn: 2)",
      {{"model.embed_tokens", {"gpt_neox.embed_in"}},
       {"model.layers.#.input_norm", {"gpt_neox.layers.#.input_layernorm"}},
       {"model.layers.#.attn.qkv", {"gpt_neox.layers.#.attention.query_key_value", Form::kByHead}},
       {"model.layers.#.attn.out", {"gpt_neox.layers.#.attention.dense"}},
       {"model.layers.#.post_attention_norm", {"gpt_neox.layers.#.post_attention_layernorm"}},
       {"model.layers.#.mlp.up", {"gpt_neox.layers.#.mlp.dense_h_to_4h"}},
       {"model.layers.#.mlp.down", {"gpt_neox.layers.#.mlp.dense_4h_to_h"}},
       {"model.norm", {"gpt_neox.final_layer_norm"}},
       {"lm_head", {"lm_head"}}}};
}

// Llama and Mistral have the same modules.
Family LlamaLike(const std::string& name, const std::string& options) {
  const std::string layer = "model.layers.#.";
  const std::string attention = layer + "self_attn.";
  return {
      name,
      absl::StrCat(R"(vocab_size: 64 hidden_size: 32 num_hidden_layers: 2 num_attention_heads: 4
                          intermediate_size: 64 position_embedding: POSITION_EMBEDDING_ROTARY
                          norm: NORM_RMSNORM hidden_act: ACTIVATION_SWIGLU )",
                   options),
      {{"model.embed_tokens", {"model.embed_tokens"}},
       {layer + "input_norm", {layer + "input_layernorm"}},
       {layer + "attn.qkv", {attention + "q_proj " + attention + "k_proj " + attention + "v_proj"}},
       {layer + "attn.out", {attention + "o_proj"}},
       {layer + "post_attention_norm", {layer + "post_attention_layernorm"}},
       {layer + "mlp.up", {layer + "mlp.gate_proj " + layer + "mlp.up_proj"}},
       {layer + "mlp.down", {layer + "mlp.down_proj"}},
       {"model.norm", {"model.norm"}},
       {"lm_head", {"lm_head"}}}};
}

std::vector<Family> Families() {
  return {Gpt2(), NeoX(), LlamaLike("llama", "num_key_value_heads: 2"),
          LlamaLike("mistral", "num_key_value_heads: 1 sliding_window: 5")};
}

ModelConfig ConfigOf(const Family& family) {
  job::v1::ModelSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(family.spec, &spec));
  EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(family.change, &spec));
  return MakeModelConfig(spec).value();
}

template <typename T>
std::vector<double> AsDoubles(const char* data, int64_t size_bytes) {
  std::vector<T> values(size_bytes / sizeof(T));
  std::memcpy(values.data(), data, values.size() * sizeof(T));
  return {values.begin(), values.end()};
}

// The tensors of a golden file, under the names that make_golden.py gives them.
NamedValues ReadGolden(const std::string& family) {
  const std::string path = absl::StrCat("tests/golden/", family, ".safetensors");
  const std::string file = base::ReadFile(path, 1 << 20).value();
  const auto header =
      checkpoint::ParseSafetensorsHeader(file, static_cast<int64_t>(file.size()), path).value();
  NamedValues tensors;
  for (const checkpoint::SafetensorsEntry& entry : header.entries) {
    const char* data = file.data() + header.data_begin + entry.begin;
    tensors[entry.key] = entry.dtype == "F64"   ? AsDoubles<double>(data, entry.size_bytes)
                         : entry.dtype == "F32" ? AsDoubles<float>(data, entry.size_bytes)
                                                : AsDoubles<int32_t>(data, entry.size_bytes);
  }
  return tensors;
}

std::vector<double> Transposed(const std::vector<double>& values, int64_t rows) {
  const int64_t cols = static_cast<int64_t>(values.size()) / rows;
  std::vector<double> transposed(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) transposed[r * cols + c] = values[c * rows + r];
  }
  return transposed;
}

// [head][query, key, value] to [query, key, value][head].
std::vector<double> Regrouped(const std::vector<double>& values, int64_t heads) {
  const int64_t part = static_cast<int64_t>(values.size()) / (3 * heads);
  std::vector<double> regrouped;
  for (int64_t kind = 0; kind < 3; ++kind) {
    for (int64_t head = 0; head < heads; ++head) {
      const auto begin = values.begin() + (head * 3 + kind) * part;
      regrouped.insert(regrouped.end(), begin, begin + part);
    }
  }
  return regrouped;
}

// The values of Hugging Face's parameters, under our names and in our shapes.
class Theirs {
 public:
  Theirs(const Family& family, const ModelConfig& config, const NamedValues& golden)
      : family_(family), config_(config), golden_(golden) {}

  // `what`: weight or gradient.
  std::vector<double> Read(const std::string& what, const Parameter& parameter) {
    std::vector<std::string> words = absl::StrSplit(parameter.name, '.');
    const std::string kind = words.back();
    words.pop_back();
    std::string layer;
    for (std::string& word : words) {
      int number;
      if (absl::SimpleAtoi(word, &number)) layer = std::exchange(word, "#");
    }
    const Module& module = family_.modules.at(absl::StrJoin(words, "."));
    std::vector<double> values;
    const std::vector<std::string> names = absl::StrSplit(module.theirs, ' ');
    for (const std::string& name : names) {
      const std::string key =
          absl::StrCat(what, "/", absl::StrReplaceAll(name, {{"#", layer}}), ".", kind);
      read_.insert(key);
      const std::vector<double>& part = golden_.at(key);
      values.insert(values.end(), part.begin(), part.end());
    }
    const bool is_matrix = parameter.shape.size() > 1;
    if (module.form == Form::kTransposed && is_matrix) {
      return Transposed(values, parameter.shape[0]);
    }
    return module.form == Form::kByHead ? Regrouped(values, config_.num_heads) : values;
  }

  size_t num_read() const { return read_.size(); }

 private:
  const Family& family_;
  const ModelConfig& config_;
  const NamedValues& golden_;
  std::set<std::string> read_;
};

// Mean loss and gradients, of ours and of theirs, in our names.
struct Outcome {
  double loss = 0;
  double expected_loss = 0;
  NamedValues gradients;
  NamedValues expected_gradients;
};

Outcome RunFamily(const Family& family, ops::Ops* ops, int num_chunks) {
  const NamedValues golden = ReadGolden(family.name);
  const ModelConfig config = ConfigOf(family);
  Theirs theirs(family, config, golden);
  TestPipeline pipeline(
      {.config = config, .num_chunks = num_chunks, .micro_batch = kBatch, .seq = kSeq}, ops);
  Outcome outcome;
  for (const Parameter& parameter : pipeline.Parameters()) {
    pipeline.SetWeights(parameter.name, theirs.Read("weight", parameter));
    outcome.expected_gradients[parameter.name] = theirs.Read("gradient", parameter);
  }
  // All that the file holds: weights, gradients, the loss and the tokens.
  EXPECT_EQ(theirs.num_read() + 2, golden.size());
  const std::vector<double>& tokens = golden.at("tokens");
  pipeline.Forward(0, {tokens.begin(), tokens.end()}, 1.0 / kTokens);
  pipeline.Backward(0);
  outcome.loss = pipeline.loss() / kTokens;
  outcome.expected_loss = golden.at("loss")[0];
  outcome.gradients = pipeline.Gradients();
  return outcome;
}

struct Tolerances {
  double loss;
  double gradient;
};
constexpr Tolerances kExact = {1e-12, 1e-12};

void ExpectGolden(const Family& family, ops::Ops* ops, int num_chunks, Tolerances tolerances) {
  SCOPED_TRACE(family.name);
  const Outcome outcome = RunFamily(family, ops, num_chunks);
  EXPECT_NEAR(outcome.loss, outcome.expected_loss, tolerances.loss * outcome.expected_loss);
  EXPECT_LE(LargestTensorDistance(outcome.gradients, outcome.expected_gradients),
            tolerances.gradient);
}

TEST(Golden, Float64AgreesWithTransformers) {
  for (const Family& family : Families()) {
    ExpectGolden(family, ops::MakeReferenceOps().get(), 1, kExact);
  }
}

TEST(Golden, Float64AgreesWithTransformersInTwoChunks) {
  for (const Family& family : Families()) {
    if (ConfigOf(family).tied) continue;
    ExpectGolden(family, ops::MakeReferenceOps().get(), 2, kExact);
  }
}

TEST(Golden, TheCpuAgreesWithTransformersInFloat32) {
  for (const Family& family : Families()) {
    ExpectGolden(family, ops::MakeCpuOps(DType::kF32, 2).get(), 1, {1e-6, 1e-5});
  }
}

TEST(Golden, TheCpuAgreesWithTransformersInBFloat16) {
  for (const Family& family : Families()) {
    ExpectGolden(family, ops::MakeCpuOps(DType::kBF16, 2).get(), 1, {1e-2, 1e-1});
  }
}

// Shows that the files detect mistakes: a model that differs in one option does not agree with
// them.
TEST(Golden, TellsOptionsApart) {
  const std::pair<std::string, std::string> changes[] = {
      {"gpt2", "hidden_act: ACTIVATION_GELU"},
      {"gpt2", "norm_eps: 1.1e-5"},
      {"neox", "hidden_act: ACTIVATION_GELU_TANH"},
      {"neox", "partial_rotary_factor: 0.5"},
      {"neox", "parallel_block: false"},
      {"llama", "rope_theta: 10001"},
      {"mistral", "sliding_window: 4"},
      {"mistral", "sliding_window: 6"},
  };
  for (const auto& [name, change] : changes) {
    SCOPED_TRACE(name + " " + change);
    for (Family family : Families()) {
      if (family.name != name) continue;
      family.change = change;
      const Outcome outcome = RunFamily(family, ops::MakeReferenceOps().get(), 1);
      EXPECT_GE(std::abs(outcome.loss - outcome.expected_loss), 100 * kExact.loss * outcome.loss);
      EXPECT_GE(LargestTensorDistance(outcome.gradients, outcome.expected_gradients),
                100 * kExact.gradient);
    }
  }
}

}  // namespace
}  // namespace megascale::model
