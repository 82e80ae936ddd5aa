// A tokenizer is its whole folder: what AutoTokenizer makes of the files beside the tokenizer's.
// tests/golden/tokenizer/make_folders.py and make_fields.py made the golden files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/data/tokenizer/files/settings.h"
#include "runtime/data/tokenizer/files/tokenizer_file.h"

namespace megascale::tokenizer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string ReadRunfile(const std::string& name) {
  const auto text =
      base::ReadFile(absl::StrCat(::getenv("TEST_SRCDIR"), "/megascale/", name), 8 << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

std::string Golden(const std::string& name) {
  return ReadRunfile(absl::StrCat("tests/golden/tokenizer/", name));
}

using Files = std::vector<std::pair<std::string, std::string>>;

// Writes a folder with a tokenizer's file of the golden ones and other files.
std::string MakeFolder(const std::string& base, const Files& files) {
  std::string folder = absl::StrCat(::testing::TempDir(), "/tokenizer-XXXXXX");
  EXPECT_NE(::mkdtemp(folder.data()), nullptr);
  const auto write = [&](const std::string& name, const std::string& content) {
    std::ofstream(absl::StrCat(folder, "/", name)) << content;
  };
  write(absl::EndsWith(base, ".model") ? "tokenizer.model" : "tokenizer.json", Golden(base));
  for (const auto& [name, content] : files) write(name, content);
  return folder;
}

std::vector<int32_t> IdsOf(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  tokenizer.Encode(text, {}, &ids);
  return ids;
}

std::string ErrorOf(const std::string& base, const std::string& config) {
  return std::string(
      LoadTokenizer(MakeFolder(base, {{"tokenizer_config.json", config}})).status().message());
}

TEST(FolderSettingsTest, EveryFolderIsReadAsTheReferenceReadsItOrRefused) {
  const auto golden = nlohmann::json::parse(Golden("folders.json"));
  int num_read = 0;
  int num_refused = 0;
  for (const auto& folder : golden["folders"]) {
    Files files;
    for (const auto& [name, content] : folder["files"].items()) files.emplace_back(name, content);
    const auto loaded = LoadTokenizerWithFiles(MakeFolder(folder["base"], files));
    if (!loaded.ok()) {
      EXPECT_FALSE(folder["must"]) << loaded.status() << "\n" << folder["files"];
      ++num_refused;
      continue;
    }
    ++num_read;
    const Tokenizer& tokenizer = *loaded->tokenizer;
    EXPECT_EQ(tokenizer.vocabulary_size(), folder["size"]) << folder["base"] << folder["files"];
    for (size_t i = 0; i < golden["texts"].size(); ++i) {
      EXPECT_EQ(IdsOf(tokenizer, golden["texts"][i]), folder["ids"][i].get<std::vector<int32_t>>())
          << golden["texts"][i] << "\n"
          << folder["base"] << folder["files"];
    }
    // What a checkpoint keeps is the same tokenizer.
    Files kept;
    for (const auto& file : loaded->files) kept.emplace_back(file.name, file.content);
    const auto again = LoadTokenizer(MakeFolder(folder["base"], kept));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->sha256(), tokenizer.sha256()) << folder["files"];
  }
  EXPECT_GT(num_read, 2 * num_refused);
}

TEST(FolderSettingsTest, TheDigestChangesOnlyWithTheTokens) {
  const auto digest = [](const std::string& config) {
    const auto loaded =
        LoadTokenizer(MakeFolder("llama2.json", {{"tokenizer_config.json", config}}));
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? (*loaded)->sha256() : "";
  };
  const auto alone = LoadTokenizer(MakeFolder("llama2.json", {}));
  ASSERT_TRUE(alone.ok());
  const std::string same = R"("tokenizer_class": "LlamaTokenizer", "chat_template": "x")";
  EXPECT_EQ(digest(absl::StrCat("{", same, "}")), (*alone)->sha256());
  EXPECT_NE(digest(absl::StrCat("{", same, R"(, "add_bos_token": false})")), (*alone)->sha256());
  EXPECT_NE(digest(absl::StrCat("{", same, R"(, "pad_token": "[PAD]"})")), (*alone)->sha256());
}

TEST(FolderSettingsTest, AFileThatIsNamedItselfIsReadAlone) {
  const std::string folder = MakeFolder("sentencepiece-fallback.model",
                                        {{"tokenizer_config.json", R"({"add_bos_token": true})"}});
  const auto alone = LoadTokenizer(folder + "/tokenizer.model");
  const auto whole = LoadTokenizer(folder);
  ASSERT_TRUE(alone.ok() && whole.ok()) << alone.status() << whole.status();
  EXPECT_THAT((*alone)->begin_ids(), IsEmpty());
  EXPECT_THAT((*whole)->begin_ids(), ElementsAre(1));
}

TEST(FolderSettingsTest, WhatIsNotSupportedIsRefusedByName) {
  EXPECT_THAT(ErrorOf("llama2.json", R"({"tokenizer_class": "XGLMTokenizer"})"),
              HasSubstr("tokenizer_class: XGLMTokenizer is not supported; expected"));
  EXPECT_THAT(ErrorOf("llama2.json", R"({"split_special_tokens": true})"),
              HasSubstr("split_special_tokens: is set, which would change tokens"));
  EXPECT_THAT(ErrorOf("llama2.json", R"({"tokenizer_class": "LlamaTokenizer", "bos_token": null})"),
              HasSubstr("add_bos_token is true, but bos_token is null"));
  EXPECT_THAT(ErrorOf("gpt2.json", R"({"tokenizer_class": "LlamaTokenizer"})"),
              HasSubstr("bos_token is not named, and the tokenizer has no '<s>', the default"));
  EXPECT_THAT(ErrorOf("llama2.json", R"({"added_tokens_decoder": {"9999": {"content": "<x>"}}})"),
              HasSubstr("'<x>' has id 9999, expected "));
  EXPECT_THAT(ErrorOf("llama2.json", R"({"added_tokens_decoder": {"x": {"content": "<x>"}}})"),
              HasSubstr("added_tokens_decoder.x: is null, expected an integer"));
  EXPECT_THAT(ErrorOf("llama2.json", R"({"bos_token": 7})"), HasSubstr("bos_token: is number"));
  EXPECT_THAT(ErrorOf("llama2.json", "[]"), HasSubstr("tokenizer_config.json: the file: is array"));
  EXPECT_THAT(ErrorOf("llama2.json", "{"), HasSubstr("tokenizer_config.json: is not JSON"));
  EXPECT_THAT(ErrorOf("sentencepiece-fallback.model",
                      R"({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": null})"),
              HasSubstr("add_prefix_space: is null, which versions of transformers read"));
}

TEST(FolderSettingsTest, AnUnknownFieldIsIgnoredWithAWarning) {
  const auto loaded = LoadTokenizer(
      MakeFolder("llama2.json", {{"tokenizer_config.json", R"({"colour": "blue"})"}}));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT((*loaded)->warnings(),
              ElementsAre("tokenizer_config.json: the field 'colour' is unknown and ignored"));
}

TEST(FolderSettingsTest, EveryFieldThatTheReferenceWritesIsKnownAndDocumented) {
  const std::string page = ReadRunfile("docs/hugging-face.md");
  const auto known = KnownSettingsFields();
  for (const SettingsField& field : known) {
    const absl::string_view use = field.use == FieldUse::kRead       ? "read"
                                  : field.use == FieldUse::kHarmless ? "harmless"
                                                                     : "refused if set";
    EXPECT_THAT(page, HasSubstr(absl::StrCat("\n| `", field.name, "` | ", use, " |")));
  }
  int num_fields = 0;
  const auto golden = nlohmann::json::parse(Golden("tokenizer_fields.json"));
  for (const auto& [version, fields] : golden.items()) {
    for (const auto& name : fields["tokenizer_config.json"]) {
      ++num_fields;
      EXPECT_TRUE(std::any_of(
          known.begin(), known.end(),
          [&](const SettingsField& field) { return field.name == name.get<std::string>(); }))
          << version << " " << name;
    }
    for (const auto& name : fields["tokenizer.json"]) {
      EXPECT_THAT(page, HasSubstr(absl::StrCat("\n| `", name.get<std::string>(), "` |")));
    }
  }
  EXPECT_GT(num_fields, 40);
}

}  // namespace
}  // namespace megascale::tokenizer
