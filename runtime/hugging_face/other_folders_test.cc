// Folders as other programs write them: sound ones are read as `transformers` reads them, and what
// is not supported is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/hugging_face/end_tokens.h"
#include "runtime/hugging_face/folder.h"
#include "runtime/hugging_face/import.h"
#include "runtime/hugging_face/initial_weights.h"
#include "runtime/hugging_face/testing/test_folder.h"
#include "runtime/hugging_face/weights.h"

namespace megascale::hugging_face {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr char kHeadName[] = "lm_head.weight";
constexpr char kEmbeddingName[] = "model.embed_tokens.weight";

std::string Message(const absl::Status& status) { return std::string(status.message()); }

std::string ErrorOf(const TestFolder& folder) {
  return Message(Weights::Open(folder.path()).status());
}

// A folder whose configuration says that the embeddings are tied.
class TiedFolder : public TestFolder {
 public:
  TiedFolder() {
    Write("config.json",
          absl::StrReplaceAll(kLlamaConfig, {{"\"vocab_size\"", R"("tie_word_embeddings": true,
                                            "vocab_size")"}}));
    tensors = Zeros("BF16");
    tensors[kEmbeddingName].numbers = {1, 2, 3};
    tensors[kHeadName].numbers = {1, 2, 3};
  }
  // Imports and exports the folder; returns the names of the exported tensors' count.
  size_t NumExported() const {
    const std::string weights = path() + "/weights", out = path() + "/out";
    EXPECT_EQ(Import(path(), weights).status(), absl::OkStatus());
    EXPECT_EQ(Export({.checkpoint = weights, .folder = out}).status(), absl::OkStatus());
    return Folder::Open(out).value()->tensors().size();
  }

  Tensors tensors;
};

TEST(OtherFolders, AHeadThatDiffersFromTiedEmbeddingsIsKept) {
  TiedFolder folder;
  folder.tensors[kHeadName].numbers = {1, 2, 4};
  folder.WriteTensors(folder.tensors);
  const auto source = FindSource(folder.path());
  ASSERT_EQ(source.status(), absl::OkStatus());
  EXPECT_FALSE(source->model.tie_word_embeddings());
  EXPECT_THAT(source->warnings,
              ElementsAre(absl::StrCat(
                  folder.path(),
                  ": tie_word_embeddings is true, but lm_head.weight has other numbers than "
                  "model.embed_tokens.weight: the model is untied; set tie_word_embeddings to "
                  "false in config.json")));
  EXPECT_EQ(folder.NumExported(), folder.tensors.size());
  const Config exported = ReadConfig(folder.path() + "/out").value();
  EXPECT_FALSE(exported.model.tie_word_embeddings());
  EXPECT_THAT(exported.warnings, IsEmpty());
  // A job begins with both matrices.
  job::v1::ModelSpec model = MergeModels(*source, {}, {}).value();
  const auto weights = InitialWeights::Open(model).value();
  std::vector<float> head(3);
  const checkpoint::Box whole = checkpoint::WholeBox(std::vector<int64_t>{10, 8});
  ASSERT_EQ(weights->Read(kHeadName, whole, 0, absl::MakeSpan(head)), absl::OkStatus());
  EXPECT_THAT(head, ElementsAre(1, 2, 4));
  // A job that was made without a look at the weights does not lose one of them.
  model.set_tie_word_embeddings(true);
  EXPECT_THAT(Message(InitialWeights::Open(model).status()),
              HasSubstr("model.tie_word_embeddings: the job has true, but "));
}

TEST(OtherFolders, AHeadThatEqualsTiedEmbeddingsIsTheirCopy) {
  TiedFolder folder;
  folder.WriteTensors(folder.tensors);
  EXPECT_TRUE(FindSource(folder.path())->model.tie_word_embeddings());
  EXPECT_THAT(FindSource(folder.path())->warnings, IsEmpty());
  EXPECT_EQ(folder.NumExported(), folder.tensors.size() - 1);
}

TEST(OtherFolders, AHeadOfAnotherTypeIsComparedByItsNumbers) {
  TiedFolder folder;
  folder.tensors[kHeadName].dtype = "F32";
  folder.WriteTensors(folder.tensors);
  EXPECT_TRUE(FindSource(folder.path())->model.tie_word_embeddings());
  folder.tensors[kHeadName].numbers = {1, 2, 3.0001F};
  folder.WriteTensors(folder.tensors);
  EXPECT_FALSE(FindSource(folder.path())->model.tie_word_embeddings());
}

TEST(OtherFolders, TiedEmbeddingsMayBeStoredAsTheHead) {
  TiedFolder folder;
  folder.tensors.erase(kEmbeddingName);
  folder.WriteTensors(folder.tensors);
  const auto weights = Weights::Open(folder.path());
  ASSERT_EQ(weights.status(), absl::OkStatus());
  std::vector<float> embedding(3);
  const checkpoint::Box whole = checkpoint::WholeBox(std::vector<int64_t>{10, 8});
  ASSERT_EQ((*weights)->Read(kEmbeddingName, whole, 0, absl::MakeSpan(embedding)),
            absl::OkStatus());
  EXPECT_THAT(embedding, ElementsAre(1, 2, 3));
}

TEST(OtherFolders, PartsOfAProjectionInSeveralTypesAreNotImported) {
  const TestFolder folder;
  for (const char* name : {"self_attn.k_proj.weight", "mlp.up_proj.weight"}) {
    TestFolder::Tensors tensors = folder.Zeros("F32");
    tensors[absl::StrCat("model.layers.0.", name)].dtype = "F16";
    tensors["model.norm.weight"].dtype = "BF16";  // a tensor by itself
    folder.WriteTensors(tensors);
    EXPECT_EQ(Weights::Open(folder.path()).status(), absl::OkStatus());
    const std::string out = folder.path() + "/out";
    EXPECT_THAT(Message(Import(folder.path(), out).status()),
                HasSubstr(absl::StrCat("model.layers.0.", name, " is stored as F16, ")));
    EXPECT_FALSE(std::filesystem::exists(out));
  }
}

TEST(OtherFolders, ANumberThatIsNotFiniteIsNamedWithItsIndex) {
  const TestFolder folder;
  const std::string name = "model.layers.0.self_attn.k_proj.weight";
  for (const auto& [dtype, value, shown] :
       {std::tuple("F32", kNan, "nan"), std::tuple("BF16", -INFINITY, "-inf"),
        std::tuple("F16", kNan, "nan")}) {
    TestFolder::Tensors tensors = folder.Zeros(dtype);
    tensors[name].numbers.resize(64);
    tensors[name].numbers[2 * 8 + 5] = value;
    folder.WriteTensors(tensors);
    const std::string message =
        absl::StrCat(folder.path(), ": ", name, "[2, 5] is ", shown, ": expected a finite number");
    const auto weights = Weights::Open(folder.path()).value();
    const checkpoint::Box whole = checkpoint::WholeBox(std::vector<int64_t>{24, 8});
    std::vector<float> numbers(24 * 8);
    EXPECT_EQ(weights->Read("model.layers.0.attn.qkv.weight", whole, 0, absl::MakeSpan(numbers)),
              absl::DataLossError(message));
    // A rank that does not read it does not see it.
    EXPECT_EQ(weights->Read("model.layers.0.attn.qkv.weight", whole, 0,
                            absl::MakeSpan(numbers).first(8 * 8)),
              absl::OkStatus());
    const std::string out = absl::StrCat(folder.path(), "/out-", dtype);
    EXPECT_EQ(Import(folder.path(), out).status(), absl::DataLossError(message));
    EXPECT_FALSE(std::filesystem::exists(out + "/manifest.json"));
  }
}

TEST(OtherFolders, TheIndexIsThatOfTheFilesTensorWhateverItsForm) {
  const TestFolder folder;
  folder.Write("config.json", R"({"architectures": ["GPTNeoXForCausalLM"], "vocab_size": 10,
      "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
      "attention_bias": false, "rotary_pct": 0.5})");
  const std::string layer = "gpt_neox.layers.0.";
  TestFolder::Tensors tensors = {{"gpt_neox.embed_in.weight", {"F32", {10, 8}}},
                                 {"embed_out.weight", {"F32", {10, 8}}},
                                 {layer + "attention.query_key_value.weight", {"F32", {24, 8}}},
                                 {layer + "attention.dense.weight", {"F32", {8, 8}}},
                                 {layer + "mlp.dense_h_to_4h.weight", {"F32", {12, 8}}},
                                 {layer + "mlp.dense_h_to_4h.bias", {"F32", {12}}},
                                 {layer + "mlp.dense_4h_to_h.weight", {"F32", {8, 12}}},
                                 {layer + "mlp.dense_4h_to_h.bias", {"F32", {8}}}};
  for (const std::string& norm : {layer + "input_layernorm", layer + "post_attention_layernorm",
                                  std::string("gpt_neox.final_layer_norm")}) {
    tensors[norm + ".weight"] = {"F32", {8}};
    tensors[norm + ".bias"] = {"F32", {8}};
  }
  auto& numbers = tensors[layer + "attention.query_key_value.weight"].numbers;
  numbers.resize(24 * 8);
  numbers[17 * 8 + 3] = kNan;
  folder.WriteTensors(tensors);
  EXPECT_THAT(Message(Import(folder.path(), folder.path() + "/out").status()),
              HasSubstr("attention.query_key_value.weight[17, 3] is nan"));
  numbers[17 * 8 + 3] = 0;
  tensors[layer + "mlp.dense_h_to_4h.bias"].numbers = {0, 0, INFINITY};
  folder.WriteTensors(tensors);
  EXPECT_THAT(Message(Import(folder.path(), folder.path() + "/out2").status()),
              HasSubstr("mlp.dense_h_to_4h.bias[2] is inf"));
}

// As a job that lost its way leaves it.
TEST(OtherFolders, ACheckpointWithANumberThatIsNotFiniteIsNotAStart) {
  const TestFolder folder;
  folder.WriteTensors(folder.Zeros());
  const std::string weights = folder.path() + "/weights";
  ASSERT_EQ(Import(folder.path(), weights).status(), absl::OkStatus());
  // The zeros of the shard become what all bits of a float say.
  const std::string shard = weights + "/rank-00000.safetensors";
  std::string bytes = base::ReadFile(shard, 1 << 20).value();
  const std::string sha256 = base::Sha256Hex(bytes);
  bytes.replace(bytes.size() - 8, 4, "\xff\xff\xff\xff");
  ASSERT_TRUE(base::WriteFileDurably(shard, bytes).ok());
  const std::string manifest_path = weights + "/manifest.json";
  const std::string manifest = base::ReadFile(manifest_path, 1 << 20).value();
  ASSERT_THAT(manifest, HasSubstr(sha256));
  ASSERT_TRUE(base::WriteFileDurably(
                  manifest_path, absl::StrReplaceAll(manifest, {{sha256, base::Sha256Hex(bytes)}}))
                  .ok());
  job::v1::ModelSpec model = FindSource(weights).value().model;
  model.set_from(weights);
  const auto initial = InitialWeights::Open(model).value();
  std::vector<double> head(80);
  const checkpoint::Box whole = checkpoint::WholeBox(std::vector<int64_t>{10, 8});
  const absl::Status read = initial->Read(kHeadName, whole, 0, absl::MakeSpan(head));
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(read), HasSubstr(": lm_head.weight[9, 6] is "));
}

TEST(OtherFolders, AnotherFileInPlaceOfTheWeightsIsNamed) {
  const TestFolder folder;
  const std::pair<std::string, const char*> files[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 99\n",
       "is a pointer of Git LFS, not the file; fetch the file with `git lfs pull`"},
      {"<!DOCTYPE html>\n<html lang=\"en\">", "is a web page"},
      {"  <html><body>", "is a web page"},
      {std::string("PK\x03\x04\0\0\x08\x08", 8) + std::string(99, 'x'), "is a zip archive, as"},
      {std::string("\x80\x02\x8a\x0a", 4) + std::string(99, 'x'), "is a Python pickle"},
      {"GGUF" + std::string(99, '\1'), "is a GGUF file of llama.cpp"},
      {std::string("\x1f\x8b\x08\x00", 4) + std::string(99, 'x'), "is packed with gzip"},
      {R"({"error": "Repository not found"})", "is JSON, such as a server's message"},
  };
  for (const auto& [text, message] : files) {
    folder.Write("model.safetensors", text);
    EXPECT_EQ(Weights::Open(folder.path()).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(ErrorOf(folder), HasSubstr(absl::StrCat("/model.safetensors: ", message)));
  }
  folder.Remove("model.safetensors");
  folder.Write("model.safetensors.index.json", files[0].first);
  EXPECT_THAT(ErrorOf(folder), HasSubstr("index.json: is a pointer of Git LFS"));
  folder.Remove("model.safetensors.index.json");
  folder.Write("pytorch_model.bin", "");
  EXPECT_THAT(ErrorOf(folder), HasSubstr("; it has pytorch_model.bin: save the model as"));
  folder.Write("adapter_model.safetensors", "");
  EXPECT_THAT(ErrorOf(folder), HasSubstr("; it has adapter_model.safetensors: an adapter of PEFT"));
}

TEST(OtherFolders, ATypeThatHoldsNoWeightsHereIsNamed) {
  const TestFolder folder;
  for (const char* dtype : {"F8_E4M3", "F8_E5M2", "F64", "U16", "C64"}) {
    TestFolder::Tensors tensors = folder.Zeros();
    tensors["model.norm.weight"].dtype = dtype;
    folder.WriteTensors(tensors);
    EXPECT_THAT(ErrorOf(folder), HasSubstr(absl::StrCat("model.norm.weight is stored as ", dtype,
                                                        ": expected F32, BF16 or F16")));
  }
}

TEST(OtherFolders, ASurplusTensorIsNamedWithItsType) {
  const TestFolder folder;
  for (const char* dtype : {"F8_E4M3", "F32", "C64"}) {
    TestFolder::Tensors tensors = folder.Zeros();
    tensors["model.layers.0.self_attn.k_proj.scale_b"] = {dtype, {2}};
    folder.WriteTensors(tensors);
    EXPECT_THAT(
        ErrorOf(folder),
        HasSubstr(absl::StrCat("has a tensor model.layers.0.self_attn.k_proj.scale_b of type ",
                               dtype, ", which is none of LlamaForCausalLM")));
  }
}

// The files of a cache may be links whose targets were deleted.
TEST(OtherFolders, ABrokenLinkIsNoMissingFile) {
  for (const char* name : {"config.json", "generation_config.json", "tokenizer_config.json"}) {
    const TestFolder folder;
    folder.WriteTensors(folder.Zeros());
    folder.Remove(name);
    std::filesystem::create_symlink("none", absl::StrCat(folder.path(), "/", name));
    const absl::Status status = Import(folder.path(), absl::StrCat(folder.path(), "/out")).status();
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat(name, ": is a symbolic link to a file that does not exist")))
        << name;
  }
}

TEST(OtherFolders, TablesMayHaveAnyTypeAndCountsAreIgnoredWithAWarning) {
  const TestFolder folder;
  TestFolder::Tensors tensors = folder.Zeros();
  tensors["model.layers.0.self_attn.rotary_emb.cos_cached"] = {"F8_E4M3", {2, 2}};
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F64", {2}};
  folder.WriteTensors(tensors);
  EXPECT_THAT(Weights::Open(folder.path()).value()->config().warnings, IsEmpty());
  tensors["model.position_ids"] = {"I64", {1, 5}};
  tensors["model.causal_mask"] = {"BOOL", {5, 5}};
  folder.WriteTensors(tensors);
  EXPECT_THAT(FindSource(folder.path())->warnings,
              ElementsAre(HasSubstr("model.causal_mask is ignored: its type BOOL holds no weights"),
                          HasSubstr("model.position_ids is ignored: its type I64")));
  EXPECT_EQ(Import(folder.path(), folder.path() + "/out")->warnings.size(), 2u);
  tensors["model.layers.0.extra.weight"] = {"F32", {5}};
  folder.WriteTensors(tensors);
  EXPECT_THAT(ErrorOf(folder),
              HasSubstr("has a tensor model.layers.0.extra.weight of type F32, which is none"));
}

TEST(OtherFolders, AMissingTensorIsNamedWithTheNearestOne) {
  const TestFolder folder;
  const auto error_with = [&](const std::string& prefix) {
    TestFolder::Tensors tensors;
    for (const auto& [name, tensor] : folder.Zeros()) tensors[prefix + name] = tensor;
    folder.WriteTensors(tensors);
    return ErrorOf(folder);
  };
  EXPECT_THAT(error_with("base_model.model."),
              HasSubstr("has no tensor model.embed_tokens.weight, which LlamaForCausalLM consists "
                        "of; it has base_model.model.model.embed_tokens.weight: PEFT saves models "
                        "so; merge the adapter and save the model"));
  EXPECT_THAT(
      error_with("module."),
      HasSubstr("; it has module.model.embed_tokens.weight: DistributedDataParallel saves"));
  EXPECT_THAT(error_with("_orig_mod."),
              HasSubstr("; it has _orig_mod.model.embed_tokens.weight: torch.compile saves"));
  EXPECT_THAT(error_with("module._orig_mod."),
              HasSubstr("; it has module._orig_mod.model.embed_tokens.weight: torch.compile"));
  EXPECT_THAT(error_with("student."),
              HasSubstr("; it has student.model.embed_tokens.weight: expected names without "
                        "student."));
  TestFolder::Tensors tensors;
  for (const auto& [name, tensor] : folder.Zeros()) {
    if (name != kHeadName) tensors[name.substr(6)] = tensor;
  }
  folder.WriteTensors(tensors);
  EXPECT_THAT(ErrorOf(folder),
              HasSubstr("has no tensor model.embed_tokens.weight, which LlamaForCausalLM consists "
                        "of; it has embed_tokens.weight: expected names that begin with model."));
  tensors = folder.Zeros();
  tensors.erase("model.norm.weight");
  tensors["model.norms.weight"] = {"F32", {8}};
  folder.WriteTensors(tensors);
  EXPECT_THAT(ErrorOf(folder), HasSubstr("; it has model.norms.weight: the nearest name"));
}

TEST(OtherFolders, AnEndTokenThatIsNoneIsShown) {
  EXPECT_EQ(Message(ParseEndTokens(R"({"eos_token_id": -1})", "config.json").status()),
            "config.json: eos_token_id is -1: expected a token id, or a list of them");
  EXPECT_EQ(Message(ParseEndTokens(R"({"eos_token_id": [5, "</s>"]})", "c").status()),
            "c: eos_token_id has \"</s>\": expected a token id, or a list of them");
  EXPECT_EQ(Message(ParseEndTokens(R"({"eos_token_id": 1.5})", "c").status()),
            "c: eos_token_id is 1.5: expected a token id, or a list of them");
}

}  // namespace
}  // namespace megascale::hugging_face
