// A tokenizer is its whole folder: what AutoTokenizer makes of the files beside the tokenizer's.
// tests/golden/tokenizer: make_folders.py, make_vocabularies.py and make_fields.py made the golden
// files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/fd.h"
#include "runtime/data/tokenizer/files/known_fields.h"
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

std::string MakeFolder(const Files& files) {
  std::string folder = absl::StrCat(::testing::TempDir(), "/tokenizer-XXXXXX");
  EXPECT_NE(::mkdtemp(folder.data()), nullptr);
  for (const auto& [name, content] : files) {
    std::ofstream(absl::StrCat(folder, "/", name)) << content;
  }
  return folder;
}

// Writes a folder with a tokenizer's file of the golden ones and other files.
std::string MakeFolder(const std::string& base, const Files& files) {
  Files all = {
      {absl::EndsWith(base, ".model") ? "tokenizer.model" : "tokenizer.json", Golden(base)}};
  all.insert(all.end(), files.begin(), files.end());
  return MakeFolder(all);
}

Files FilesOf(const nlohmann::json& object) {
  Files files;
  for (const auto& [name, content] : object.items()) files.emplace_back(name, content);
  return files;
}

// The model of a tokenizer.json as the older two files. "": no files.
Files VocabularyOf(const std::string& base) {
  if (base.empty()) return {};
  const auto model = nlohmann::json::parse(Golden(base))["model"];
  std::string merges = "#version: 0.2\n";
  for (const auto& merge : model["merges"]) {
    if (merge.is_string()) {
      absl::StrAppend(&merges, merge.get<std::string>(), "\n");
    } else {
      absl::StrAppend(&merges, merge[0].get<std::string>(), " ", merge[1].get<std::string>(), "\n");
    }
  }
  return {{"vocab.json", model["vocab"].dump()}, {"merges.txt", merges}};
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
    const auto loaded =
        LoadTokenizerWithFiles(MakeFolder(folder["base"], FilesOf(folder["files"])));
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

// Here the golden file has the folders that the reference cannot read, too.
TEST(FolderSettingsTest, VocabularyAndMergesAreReadAsTheReferenceReadsThem) {
  const auto golden = nlohmann::json::parse(Golden("vocabularies.json"));
  int num_read = 0;
  int num_refused = 0;
  for (const auto& folder : golden["folders"]) {
    Files files = VocabularyOf(folder["base"]);
    for (auto& file : FilesOf(folder["files"])) files.push_back(std::move(file));
    const auto loaded = LoadTokenizerWithFiles(MakeFolder(files));
    if (folder.contains("error")) {
      EXPECT_FALSE(loaded.ok()) << folder["error"] << folder["files"];
      continue;
    }
    if (!loaded.ok()) {
      EXPECT_FALSE(folder["must"]) << loaded.status() << "\n" << folder["files"];
      ++num_refused;
      continue;
    }
    ++num_read;
    EXPECT_EQ(loaded->tokenizer->vocabulary_size(), folder["size"]) << folder["files"];
    for (size_t i = 0; i < golden["texts"].size(); ++i) {
      EXPECT_EQ(IdsOf(*loaded->tokenizer, golden["texts"][i]),
                folder["ids"][i].get<std::vector<int32_t>>())
          << golden["texts"][i] << "\n"
          << folder["base"] << folder["files"];
    }
    // What a checkpoint keeps is the same tokenizer, without the model's config.json.
    Files kept;
    for (const auto& file : loaded->files) kept.emplace_back(file.name, file.content);
    const auto again = LoadTokenizer(MakeFolder(kept));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->sha256(), loaded->tokenizer->sha256()) << folder["files"];
  }
  EXPECT_GT(num_read, 60);
  EXPECT_GT(num_read, 2 * num_refused);
}

TEST(FolderSettingsTest, VocabularyOrMergesThatCannotBeReadAreNamed) {
  const std::string config = R"({"tokenizer_class": "GPT2Tokenizer"})";
  const auto error_of = [&](const std::string& vocabulary, const std::string& merges) {
    const std::string folder = MakeFolder(
        {{"vocab.json", vocabulary}, {"merges.txt", merges}, {"tokenizer_config.json", config}});
    return absl::StrReplaceAll(LoadTokenizer(folder).status().message(), {{folder, "F"}});
  };
  const std::string good = R"({"a": 0, "b": 1, "ab": 2})";
  EXPECT_EQ(error_of(good, "#\na b\n"), "");
  EXPECT_EQ(error_of(good, "#\na b\nb a\n"), "F: merges.txt:3: 'ba' is not in vocab.json");
  EXPECT_EQ(error_of(good, "#\nx b\n"), "F: merges.txt:2: 'x' is not in vocab.json");
  EXPECT_EQ(error_of(good, "#\na b ab\n"), "F: merges.txt:2: has 3 words; expected two tokens");
  EXPECT_EQ(error_of(good, "#\n\n"), "F: merges.txt:2: has 0 words; expected two tokens");
  EXPECT_EQ(error_of(good, "#\n\xFF b\n"), "F: merges.txt: is not UTF-8; expected text");
  EXPECT_EQ(error_of(good, ""), "F: merges.txt: is empty; expected lines of two tokens");
  EXPECT_EQ(error_of("", "#\na b\n"), "F: vocab.json: is not JSON: mistake at byte 1 of 0");
  EXPECT_EQ(error_of("{}", "#\n"),
            "F: vocab.json: has no tokens; expected an object with the id of each token");
  EXPECT_EQ(error_of("[]", "#\n"),
            "F: vocab.json: is no JSON object; expected an object with the id of each token");
  EXPECT_EQ(error_of(R"({"a": 0, "b": 7})", "#\n"),
            "F: vocab.json: model.vocab.'b': is 7; expected each of 0 to 1 once");
  EXPECT_EQ(error_of(std::string(1 << 16, '['), "#\n"),
            "F: vocab.json: is nested more than 32 levels deep; expected fewer");
}

TEST(FolderSettingsTest, AVocabularyNeedsItsMergesAndAClassThatReadsThem) {
  const auto error_of = [](const Files& files, const std::string& name = "") {
    const std::string folder = MakeFolder(files);
    return absl::StrReplaceAll(LoadTokenizer(folder + name).status().message(), {{folder, "F"}});
  };
  const Files two = VocabularyOf("gpt2.json");
  const auto with = [&](const std::string& name, const std::string& content) {
    Files files = two;
    files.emplace_back(name, content);
    return files;
  };
  EXPECT_EQ(error_of({two[0]}),
            "F: has vocab.json, but no merges.txt; expected both, or a tokenizer.json");
  EXPECT_EQ(error_of(two),
            "F: vocab.json: neither tokenizer_config.json nor config.json says how to read it; "
            "expected the tokenizer_class GPT2Tokenizer or Qwen2Tokenizer");
  EXPECT_EQ(error_of(with("config.json", R"({"model_type": "llama"})")),
            "F: tokenizer_class: LlamaTokenizer is not supported for vocab.json and merges.txt; "
            "expected GPT2Tokenizer or Qwen2Tokenizer, or a tokenizer.json beside them");
  EXPECT_EQ(error_of(with("tokenizer_config.json",
                          R"({"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": true})")),
            "F: tokenizer_config.json: add_prefix_space: is true, which Qwen2Tokenizer does not "
            "support; expected false");
  EXPECT_EQ(error_of(with("config.json", R"({"model_type": "gpt2"})"), "/vocab.json"),
            "F/vocab.json: is the vocabulary alone; name its folder, with merges.txt");
  EXPECT_EQ(
      error_of({two[1]}),
      "tokenizer folder F: has no tokenizer.json, tokenizer.model or vocab.json; expected one");
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

// The files of a cache may be links whose targets were deleted.
TEST(FolderSettingsTest, ABrokenLinkIsNoMissingFile) {
  for (const std::string name : {"tokenizer.json", "tokenizer_config.json", "config.json",
                                 "special_tokens_map.json", "added_tokens.json"}) {
    const std::string folder =
        MakeFolder("sentencepiece-fallback.model", {{"config.json", R"({"model_type": "llama"})"}});
    ASSERT_TRUE(LoadTokenizer(folder).ok());
    const std::string path = absl::StrCat(folder, "/", name);
    ::unlink(path.c_str());
    ASSERT_EQ(::symlink("none", path.c_str()), 0);
    EXPECT_EQ(std::string(LoadTokenizer(folder).status().message()),
              path + ": is a symbolic link to a file that does not exist");
  }
}

TEST(FolderSettingsTest, AnUnknownFieldIsIgnoredWithAWarning) {
  const auto loaded = LoadTokenizer(
      MakeFolder("llama2.json", {{"tokenizer_config.json", R"({"colour": "blue"})"}}));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT((*loaded)->warnings(),
              ElementsAre("tokenizer_config.json: the field 'colour' is unknown and ignored"));
}

TEST(FolderSettingsTest, ManyUnknownFieldsAreOneWarning) {
  nlohmann::json config;
  for (int i = 100; i < 200; ++i) config[absl::StrCat("x", i)] = i;
  const auto loaded =
      LoadTokenizer(MakeFolder("llama2.json", {{"tokenizer_config.json", config.dump()}}));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT((*loaded)->warnings(),
              ElementsAre("tokenizer_config.json: the fields 'x100', 'x101', 'x102', 'x103', "
                          "'x104', 'x105', 'x106', 'x107' and 92 more are unknown and ignored"));
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

// make_components.py walks what PyPI's `tokenizers` writes for every family of the golden files.
TEST(FolderSettingsTest, EveryFieldOfAComponentThatTheReferenceWritesIsKnown) {
  const auto golden = nlohmann::json::parse(Golden("tokenizer_components.json"));
  size_t num_fields = 0;
  for (const auto& [version, fields] : golden.items()) {
    num_fields += fields.size();
    for (const auto& field : fields) {
      EXPECT_TRUE(IsKnownField(field[0].get<std::string>(), field[1].get<std::string>(),
                               field[2].get<std::string>()))
          << version << " " << field;
    }
  }
  EXPECT_EQ(golden.size(), 2u);
  EXPECT_GT(num_fields, 120u);
}

}  // namespace
}  // namespace megascale::tokenizer
