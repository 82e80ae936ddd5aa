// Folders that are damaged, or that somebody made to do harm: each is one clear error.
#include "runtime/hugging_face/folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/hugging_face/end_tokens.h"
#include "runtime/hugging_face/import.h"
#include "runtime/hugging_face/initial_weights.h"
#include "runtime/hugging_face/testing/test_folder.h"
#include "runtime/hugging_face/unfinished_folder.h"
#include "runtime/hugging_face/weights.h"

namespace megascale::hugging_face {
namespace {

using testing::HasSubstr;

// Expects that neither the folder nor an import of it opens, with one line that says why.
void ExpectRefused(const TestFolder& folder, absl::StatusCode code, const std::string& message) {
  const auto weights = Weights::Open(folder.path());
  EXPECT_EQ(weights.status().code(), code) << weights.status();
  EXPECT_THAT(std::string(weights.status().message()), HasSubstr(message));
  EXPECT_THAT(std::string(weights.status().message()), HasSubstr(folder.path()));
  EXPECT_THAT(std::string(weights.status().message()), testing::Not(HasSubstr("\n")));
  const std::string out = folder.path() + "/out";
  EXPECT_EQ(Import(folder.path(), out).status(), weights.status());
  EXPECT_FALSE(std::filesystem::exists(out));
}

constexpr char kIndex[] = R"({"weight_map": {"lm_head.weight": "b.safetensors",
                                             "model.norm.weight": "a.safetensors"}})";

TEST(HuggingFaceFolder, AWholeFolderOpens) {
  const TestFolder folder;
  const auto weights = Weights::Open(folder.path());
  ASSERT_EQ(weights.status(), absl::OkStatus());
  EXPECT_EQ((*weights)->tensors().size(), 9);
}

TEST(HuggingFaceFolder, MissingFilesAreNamed) {
  TestFolder folder;
  folder.Remove("model.safetensors");
  ExpectRefused(folder, absl::StatusCode::kNotFound, "has no weights: expected model.safetensors");
  folder.Write("model.safetensors.index.json", kIndex);
  folder.WriteWeights("a.safetensors", {{"model.norm.weight", {8}}});
  ExpectRefused(folder, absl::StatusCode::kNotFound, "/b.safetensors: is missing");
  folder.Remove("config.json");
  ExpectRefused(folder, absl::StatusCode::kNotFound, "config.json");
}

TEST(HuggingFaceFolder, AnIndexLeadsNowhereElse) {
  TestFolder folder;
  folder.Remove("model.safetensors");
  for (const char* name : {"../a.safetensors", "/etc/passwd", "", ".safetensors", "a/b.safetensors",
                           "a.bin", "a.safetensors\\u0000"}) {
    folder.Write("model.safetensors.index.json",
                 absl::StrCat(R"({"weight_map": {"lm_head.weight": ")", name, R"("}})"));
    ExpectRefused(folder, absl::StatusCode::kInvalidArgument,
                  "expected the name of a .safetensors file in this folder");
  }
  for (const char* index : {"", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": {}})",
                            R"({"weight_map": {"a": 1}})"}) {
    folder.Write("model.safetensors.index.json", index);
    ExpectRefused(folder, absl::StatusCode::kInvalidArgument, "model.safetensors.index.json");
  }
}

TEST(HuggingFaceFolder, ADeeplyNestedIndexIsRefused) {
  EXPECT_EQ(ParseIndex(std::string(size_t{1} << 19, '['), "index").status().message(),
            "index: is nested more than 32 levels deep; expected fewer");
}

TEST(HuggingFaceFolder, ATensorThatIsNotInItsFileIsNamed) {
  TestFolder folder;
  folder.Remove("model.safetensors");
  folder.Write("model.safetensors.index.json", kIndex);
  folder.WriteWeights("a.safetensors", {{"model.norm.weight", {8}}});
  folder.WriteWeights("b.safetensors", {{"other", {8}}});
  ExpectRefused(folder, absl::StatusCode::kDataLoss, "b.safetensors: has no tensor lm_head.weight");
}

TEST(HuggingFaceFolder, ATensorOfAnotherShapeIsRefusedWithBothShapes) {
  TestFolder folder;
  folder.shapes()["model.layers.0.mlp.up_proj.weight"] = {8, 12};
  folder.WriteWeights("model.safetensors", folder.shapes());
  ExpectRefused(folder, absl::StatusCode::kInvalidArgument,
                "model.layers.0.mlp.up_proj.weight has the shape [8, 12]: expected [12, 8]");
}

TEST(HuggingFaceFolder, AMissingTensorIsNamedAndSoIsOneTooMany) {
  TestFolder folder;
  TestFolder::Shapes shapes = folder.shapes();
  shapes.erase("model.norm.weight");
  folder.WriteWeights("model.safetensors", shapes);
  ExpectRefused(folder, absl::StatusCode::kInvalidArgument, "has no tensor model.norm.weight");
  shapes = folder.shapes();
  shapes["model.layers.0.self_attn.q_proj.bias"] = {8};
  folder.WriteWeights("model.safetensors", shapes);
  ExpectRefused(folder, absl::StatusCode::kInvalidArgument,
                "has a tensor model.layers.0.self_attn.q_proj.bias of type F32, which is none of");
}

TEST(HuggingFaceFolder, TablesOfOlderVersionsAreIgnored) {
  TestFolder folder;
  TestFolder::Shapes shapes = folder.shapes();
  shapes["model.layers.0.self_attn.rotary_emb.inv_freq"] = {2};
  folder.WriteWeights("model.safetensors", shapes);
  EXPECT_EQ(Weights::Open(folder.path()).status(), absl::OkStatus());
}

TEST(HuggingFaceFolder, NumbersThatAreNoWeightsAreRefused) {
  TestFolder folder;
  folder.WriteWeights("model.safetensors", folder.shapes(), "I8");
  ExpectRefused(folder, absl::StatusCode::kInvalidArgument, "is stored as I8: expected F32, BF16");
}

TEST(HuggingFaceFolder, ADamagedHeaderIsRefused) {
  TestFolder folder;
  folder.Write("model.safetensors", "");
  ExpectRefused(folder, absl::StatusCode::kDataLoss, "the file has only 0 bytes");
  folder.Write("model.safetensors", std::string(8, '\xff') + "{}");
  ExpectRefused(folder, absl::StatusCode::kDataLoss, "its length is 18446744073709551615");
  folder.Write("model.safetensors", std::string("\x40\0\0\0\0\0\0\0{\"a\":", 13));
  ExpectRefused(folder, absl::StatusCode::kDataLoss, "it ends at byte 72, the file at 13");
}

TEST(HuggingFaceFolder, AFileThatWasCutIsRefused) {
  const TestFolder folder;
  const std::string file = folder.path() + "/model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  ExpectRefused(folder, absl::StatusCode::kDataLoss, "bytes, the file has");
}

TEST(HuggingFaceFolder, NothingIsWrittenOverOtherFiles) {
  const TestFolder folder;
  EXPECT_EQ(Import(folder.path(), folder.path()).status().code(), absl::StatusCode::kAlreadyExists);
  const std::string out = folder.path() + "/out";
  ASSERT_EQ(Import(folder.path(), out).status(), absl::OkStatus());
  EXPECT_EQ(Export({.checkpoint = out, .folder = folder.path()}).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(HuggingFaceFolder, TokenizersTravelWithTheWeights) {
  const TestFolder folder;
  folder.Write("tokenizer.json", "{}");
  folder.Write("README.md", "about");
  const std::string weights = folder.path() + "/weights", out = folder.path() + "/out";
  ASSERT_EQ(Import(folder.path(), weights).status(), absl::OkStatus());
  ASSERT_EQ(Export({.checkpoint = weights, .folder = out}).status(), absl::OkStatus());
  EXPECT_TRUE(std::filesystem::exists(out + "/tokenizer.json"));
  EXPECT_FALSE(std::filesystem::exists(out + "/README.md"));
}

constexpr char kTokenizer[] = R"({"version": "1.0"})";

// A checkpoint that a job wrote, which began with the weights of a folder.
class JobExportTest : public testing::Test {
 protected:
  JobExportTest() {
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json",
                             "chat_template.jinja", "vocab.json"}) {
      folder_.Write(name, "of the origin");
    }
    folder_.Write("tokenizer.json", kTokenizer);
    folder_.Write("generation_config.json", R"({"bos_token_id": 1, "eos_token_id": [2, 3]})");
    folder_.Write(
        "config.json",
        absl::StrCat(absl::string_view(kLlamaConfig).substr(0, std::strlen(kLlamaConfig) - 2),
                     R"(, "bos_token_id": 1, "eos_token_id": 2})"));
    EXPECT_EQ(Import(folder_.path(), checkpoint_).status(), absl::OkStatus());
    std::filesystem::remove_all(checkpoint_ + "/hugging_face");
    manifest_ = *checkpoint::ReadManifest(checkpoint_);
    manifest_.set_kind(checkpoint::v1::CHECKPOINT_KIND_UNSPECIFIED);
    manifest_.mutable_spec()->mutable_model()->set_from(folder_.path());
  }
  // Writes the manifest and the job's tokenizer, and exports with `end_token`.
  void Export(const std::string& tokenizer, std::optional<EndToken> end_token) {
    ASSERT_EQ(TryExport(tokenizer, std::move(end_token)), absl::OkStatus());
  }
  absl::Status TryExport(const std::string& tokenizer, std::optional<EndToken> end_token) {
    EXPECT_EQ(checkpoint::WriteManifest(checkpoint_, manifest_), absl::OkStatus());
    if (!tokenizer.empty()) folder_.Write("checkpoint/tokenizer.json", tokenizer);
    std::filesystem::remove_all(out_);
    return hugging_face::Export(
               {.checkpoint = checkpoint_, .folder = out_, .end_token = std::move(end_token)})
        .status();
  }
  bool Exported(const std::string& name) const {
    return std::filesystem::exists(absl::StrCat(out_, "/", name));
  }
  std::string Text(const std::string& name) const {
    return base::ReadFile(absl::StrCat(out_, "/", name), 1 << 20).value_or("");
  }

  const TestFolder folder_;
  const std::string checkpoint_ = folder_.path() + "/checkpoint";
  const std::string out_ = folder_.path() + "/out";
  checkpoint::v1::Manifest manifest_;
};

TEST_F(JobExportTest, WithTheOriginsTokenizerKeepsAllItsFiles) {
  Export(kTokenizer, EndToken{2, "</s>"});
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
        "vocab.json", "generation_config.json", "config.json"}) {
    EXPECT_EQ(Text(name), *base::ReadFile(absl::StrCat(folder_.path(), "/", name), 1 << 20))
        << name;
  }
}

TEST_F(JobExportTest, AnEndTokenOfItsOwnJoinsThoseOfTheOrigin) {
  Export(kTokenizer, EndToken{7, "!"});
  EXPECT_THAT(*ReadEndTokens(out_), testing::ElementsAre(2, 3, 7));
  EXPECT_THAT(*ParseEndTokens(Text("config.json"), ""), testing::ElementsAre(2, 3, 7));
  EXPECT_THAT(Text("generation_config.json"), HasSubstr("\"bos_token_id\": 1"));
}

TEST_F(JobExportTest, ANewConfigurationKeepsTheTokensOfTheOrigin) {
  manifest_.mutable_spec()->mutable_model()->set_sliding_window(4);
  Export(kTokenizer, EndToken{2, "</s>"});
  EXPECT_THAT(Text("config.json"), HasSubstr("\"bos_token_id\": 1"));
  EXPECT_THAT(*ParseEndTokens(Text("config.json"), ""), testing::ElementsAre(2, 3));
}

// Deeper than the stack.
std::string Nested() { return std::string(400'000, '[') + std::string(400'000, ']'); }

TEST_F(JobExportTest, ANewConfigurationTakesNothingButTokensFromTheOrigin) {
  constexpr char kNone[] = "\"bos_token_id\": null";
  manifest_.mutable_spec()->mutable_model()->set_sliding_window(4);
  for (const auto& [of_origin, copied] :
       {std::pair("[1, 2]", true), std::pair("null", false), std::pair("-1", false),
        std::pair("{}", false), std::pair("[[1]]", false)}) {
    folder_.Write(
        "config.json",
        absl::StrCat(absl::string_view(kLlamaConfig).substr(0, std::strlen(kLlamaConfig) - 2),
                     R"(, "bos_token_id": )", of_origin, "}"));
    Export(kTokenizer, EndToken{2, "</s>"});
    EXPECT_EQ(Text("config.json").find(kNone) == std::string::npos, copied) << of_origin;
  }
  folder_.Write("config.json", absl::StrCat(R"({"bos_token_id": )", Nested(), "}"));
  Export(kTokenizer, EndToken{2, "</s>"});
  EXPECT_THAT(Text("config.json"), HasSubstr(kNone));
}

TEST_F(JobExportTest, AGenerationConfigurationThatCannotBeReadIsNotReplaced) {
  const std::string file = folder_.path() + "/generation_config.json";
  folder_.Write("generation_config.json", "{");
  EXPECT_EQ(TryExport(R"({"version": "2"})", EndToken{7, "!"}),
            absl::InvalidArgumentError(file + ": is not a JSON object"));
  EXPECT_FALSE(std::filesystem::exists(out_));
  folder_.Write("generation_config.json", Nested());
  EXPECT_THAT(std::string(TryExport(R"({"version": "2"})", EndToken{7, "!"}).message()),
              HasSubstr("generation_config.json: is nested "));
}

TEST_F(JobExportTest, ALearntTokenizerReplacesAllFilesOfTheOriginsAndGetsAConfiguration) {
  Export(R"({"version": "2"})", EndToken{7, "<|endoftext|>"});
  for (const char* name : {"vocab.json", "chat_template.jinja", "special_tokens_map.json"}) {
    EXPECT_FALSE(Exported(name)) << name;
  }
  EXPECT_EQ(Text("tokenizer.json"), R"({"version": "2"})");
  const std::string config = Text("tokenizer_config.json");
  EXPECT_THAT(config, HasSubstr(R"("tokenizer_class": "PreTrainedTokenizerFast")"));
  EXPECT_THAT(config, HasSubstr(R"("eos_token": "<|endoftext|>")"));
  // The ids of the origin's tokens mean other tokens now.
  EXPECT_THAT(*ReadEndTokens(out_), testing::ElementsAre(7));
  EXPECT_THAT(*ParseEndTokens(Text("config.json"), ""), testing::ElementsAre(7));
  EXPECT_THAT(Text("config.json"), HasSubstr("\"bos_token_id\": null"));
  EXPECT_THAT(Text("generation_config.json"), testing::Not(HasSubstr("bos_token_id")));
}

TEST_F(JobExportTest, WithoutAnOriginAnEndTokenIsInTheConfiguration) {
  manifest_.mutable_spec()->mutable_model()->clear_from();
  Export(R"({"version": "2"})", EndToken{7, "<|endoftext|>"});
  EXPECT_THAT(*ReadEndTokens(out_), testing::ElementsAre(7));
  EXPECT_TRUE(Exported("tokenizer_config.json"));
  EXPECT_FALSE(Exported("generation_config.json"));
}

// `transformers` would cut texts at it, where the job did not.
TEST_F(JobExportTest, AnEndTokenThatIsNotAnAddedOneIsOnlyInTheConfiguration) {
  Export(R"({"version": "2"})", EndToken{7, ""});
  EXPECT_THAT(Text("tokenizer_config.json"), testing::Not(HasSubstr("eos_token")));
  EXPECT_THAT(*ReadEndTokens(out_), testing::ElementsAre(7));
}

TEST_F(JobExportTest, ANamedTokenizerKeepsTheFilesBesideIt) {
  manifest_.mutable_spec()->mutable_model()->clear_from();
  for (const char* named : {"", "/tokenizer.json"}) {
    manifest_.mutable_spec()->mutable_data()->set_tokenizer(folder_.path() + named);
    Export(kTokenizer, EndToken{7, "!"});
    EXPECT_EQ(Text("tokenizer_config.json"), "of the origin");
    EXPECT_THAT(*ReadEndTokens(out_), testing::ElementsAre(7));
  }
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  manifest_.mutable_spec()->mutable_data()->set_tokenizer("tokenizer.json");
  Export(kTokenizer, EndToken{7, "!"});
  std::filesystem::current_path(before);
  EXPECT_EQ(Text("tokenizer_config.json"), "of the origin") << "a name without a folder";
}

TEST_F(JobExportTest, AJobOnBytesHasNoTokenizerWhateverItsWeightsHad) {
  Export("", std::nullopt);
  EXPECT_FALSE(Exported("tokenizer.json"));
  EXPECT_FALSE(Exported("tokenizer_config.json"));
  EXPECT_THAT(*ReadEndTokens(out_), testing::IsEmpty());
}

TEST(HuggingFaceFolder, NumbersThatWouldBecomeInfiniteAreNotExported) {
  const TestFolder folder;
  const std::string path = folder.path() + "/model.safetensors", weights = folder.path() + "/in";
  // The norm's weights are the last ones of the file.
  const float last[] = {65519, -65520, 1e30F};
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - sizeof(last));
  std::ofstream(path, std::ios::binary | std::ios::app)
      .write(reinterpret_cast<const char*>(last), sizeof(last));
  ASSERT_EQ(Import(folder.path(), weights).status(), absl::OkStatus());
  const std::string out = folder.path() + "/out";
  const auto half = Export({.checkpoint = weights, .folder = out, .dtype = "F16"});
  EXPECT_EQ(half.status(),
            absl::InvalidArgumentError(absl::StrCat(
                out,
                "/model.safetensors: model.norm.weight has 2 numbers beyond the range of F16, "
                "which would become infinite; export it as bf16 or fp32")));
  EXPECT_FALSE(std::filesystem::exists(out)) << "what it has written is of no use";
  std::filesystem::create_directory(out);
  EXPECT_FALSE(Export({.checkpoint = weights, .folder = out, .dtype = "F16"}).ok());
  EXPECT_TRUE(std::filesystem::is_empty(out)) << "a folder that was there stays";
  const std::string kept = weights + "/hugging_face/vocab.json";
  std::filesystem::create_directory(kept);
  EXPECT_EQ(Export({.checkpoint = weights, .folder = out, .dtype = "F16"}).status(),
            absl::InvalidArgumentError(kept + ": is not a regular file"))
      << "small files come first, or this failure would cost all weights";
  std::filesystem::remove(kept);
  for (const char* dtype : {"BF16", "F32", ""}) {
    const std::string fits = absl::StrCat(out, "-", dtype);
    EXPECT_EQ(Export({.checkpoint = weights, .folder = fits, .dtype = dtype}).status(),
              absl::OkStatus());
  }
}

TEST(UnfinishedFolder, RemovesItsOwnFilesAlone) {
  const TestFolder parent;
  const std::string path = parent.path() + "/out";
  std::filesystem::create_directory(path);
  {
    UnfinishedFolder folder(path, /*is_new=*/true);
    ASSERT_TRUE(folder.Create("model.safetensors").ok());
    ASSERT_EQ(folder.Write("config.json", "{}"), absl::OkStatus());
    {
      UnfinishedFolder second(path, /*is_new=*/true);
      EXPECT_EQ(second.Create("model.safetensors").status().code(),
                absl::StatusCode::kAlreadyExists);
    }
    EXPECT_TRUE(std::filesystem::exists(path + "/model.safetensors")) << "the first one's";
    parent.Write("out/README.md", "about");
    std::filesystem::create_directory(path + "/notes");
  }
  EXPECT_FALSE(std::filesystem::exists(path + "/model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(path + "/config.json"));
  EXPECT_TRUE(std::filesystem::exists(path + "/README.md"));
  EXPECT_TRUE(std::filesystem::exists(path + "/notes"));
}

TEST(MergeModels, ContradictionsAreRefusedWithBothValues) {
  const TestFolder folder;
  const auto source = FindSource(folder.path());
  ASSERT_EQ(source.status(), absl::OkStatus());
  job::v1::ModelSpec given;
  given.set_hidden_size(16);
  EXPECT_EQ(MergeModels(*source, given, {"hidden_size"}).status().message(),
            absl::StrCat("model.hidden_size: the job has 16, ", folder.path(),
                         " has 8; leave the field out, or start from other weights"));
  given.set_norm(job::v1::NORM_LAYERNORM);
  EXPECT_THAT(std::string(MergeModels(*source, given, {"norm"}).status().message()),
              HasSubstr("model.norm: the job has layernorm, "));
  given.set_tie_word_embeddings(true);
  EXPECT_THAT(std::string(MergeModels(*source, given, {"tie_word_embeddings"}).status().message()),
              HasSubstr("model.tie_word_embeddings: the job has true"));
}

TEST(MergeModels, FieldsThatKeepTheWeightsMeaningMayDiffer) {
  const TestFolder folder;
  const auto source = FindSource(folder.path());
  job::v1::ModelSpec given;
  given.set_hidden_size(8);
  given.set_sliding_window(32);
  given.set_max_position_embeddings(64);
  given.set_rope_theta(7);
  const auto merged = MergeModels(
      *source, given, {"hidden_size", "sliding_window", "max_position_embeddings", "rope_theta"});
  ASSERT_EQ(merged.status(), absl::OkStatus());
  EXPECT_EQ(merged->sliding_window(), 32);
  EXPECT_EQ(merged->max_position_embeddings(), 64);
  EXPECT_EQ(merged->rope_theta(), 7);
  EXPECT_EQ(merged->vocab_size(), 10);
  EXPECT_EQ(merged->from(), folder.path());
}

TEST(FindSource, AFolderThatMayNotBeReadIsNoFolderWithoutWeights) {
  const uid_t user = ::geteuid();
  if (user == 0 && ::seteuid(65534) != 0) GTEST_SKIP() << "root here, and cannot be anybody else";
  ASSERT_EQ(::seteuid(user), 0);
  char path[] = "/tmp/ms-XXXXXX";
  ASSERT_NE(::mkdtemp(path), nullptr);
  std::ofstream(std::string(path) + "/manifest.json") << "{}";
  ASSERT_EQ(::chmod(path, 0), 0);
  if (user == 0) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const absl::Status refused = FindSource(path).status();
  ASSERT_EQ(::seteuid(user), 0);
  std::filesystem::remove_all(path);
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(std::string(refused.message()), absl::StrCat(path, ": Permission denied"));
}

TEST(FindSource, AFileIsNoFolder) {
  EXPECT_THAT(std::string(FindSource("/proc/version").status().message()),
              HasSubstr("/proc/version: is no folder: expected a Hugging Face folder"));
}

TEST(FindSource, AFolderWithoutWeightsIsNamed) {
  EXPECT_THAT(std::string(FindSource("/nowhere").status().message()),
              HasSubstr("/nowhere: has no weights: expected a Hugging Face folder"));
}

}  // namespace
}  // namespace megascale::hugging_face
