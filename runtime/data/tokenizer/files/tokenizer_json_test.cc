// What tokenizer.json files are refused, with which words, and files that we write.
#include "runtime/data/tokenizer/files/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/fd.h"
#include "runtime/data/tokenizer/files/tokenizer_file.h"

namespace megascale::tokenizer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kSmall[] = R"({
  "added_tokens": [{"id": 3, "content": "<end>", "special": true}],
  "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";

// Returns the error of the small file after a change.
absl::Status ErrorAfter(const std::string& old_text, const std::string& new_text) {
  const std::string text = absl::StrReplaceAll(kSmall, {{old_text, new_text}});
  EXPECT_NE(text, kSmall);
  return ParseTokenizerJson(text).status();
}

std::vector<int32_t> Encode(const std::string& file, absl::string_view text) {
  auto parts = ParseTokenizerJson(file);
  EXPECT_TRUE(parts.ok()) << parts.status();
  std::vector<int32_t> ids;
  (*Tokenizer::Create(*std::move(parts)))->Encode(text, {}, &ids);
  return ids;
}

TEST(TokenizerJsonTest, ReadsASmallFile) {
  EXPECT_THAT(Encode(kSmall, "abb<end>a"), ElementsAre(2, 1, 3, 0));
}

TEST(TokenizerJsonTest, MergesMayBePairs) {
  EXPECT_THAT(Encode(absl::StrReplaceAll(kSmall, {{"\"a b\"", "[\"a\", \"b\"]"}}), "ab"),
              ElementsAre(2));
}

TEST(TokenizerJsonTest, AComponentThatIsNotSupportedIsNamed) {
  const struct {
    std::string old_text, new_text, message;
  } mistakes[] = {
      {"\"BPE\"", "\"Unigram\"", "model: Unigram is not supported; expected BPE"},
      {"\"normalizer\": null", "\"normalizer\": {\"type\": \"Lowercase\"}",
       "normalizer: Lowercase is not supported; expected NFC, Prepend, Replace or a Sequence of "
       "them"},
      {"\"normalizer\": null",
       R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "BERT"}]})",
       "normalizer.normalizers[1]: BERT is not supported"},
      {"\"pre_tokenizer\": null", "\"pre_tokenizer\": {\"type\": \"Punctuation\"}",
       "pre_tokenizer: Punctuation is not supported; expected Metaspace, ByteLevel"},
      {"\"pre_tokenizer\": null",
       R"("pre_tokenizer": {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Isolated"})",
       "pre_tokenizer: Split by the Regex x+ is not supported"},
      {"\"post_processor\": null", "\"post_processor\": {\"type\": \"BertProcessing\"}",
       "post_processor: BertProcessing is not supported"},
      {"\"decoder\": null", "\"decoder\": {\"type\": \"WordPiece\"}",
       "decoder: WordPiece is not supported"},
      {"\"merges\"", "\"dropout\": 0.1, \"merges\"", "model.dropout: is not supported"},
      {"\"merges\"", "\"end_of_word_suffix\": \"</w>\", \"merges\"",
       "model.end_of_word_suffix: is not supported; expected null"},
  };
  for (const auto& mistake : mistakes) {
    const absl::Status status = ErrorAfter(mistake.old_text, mistake.new_text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(mistake.message));
  }
}

TEST(TokenizerJsonTest, SavedTruncationAndPaddingAreIgnoredWithAWarning) {
  for (const std::string name : {"truncation", "padding"}) {
    std::string text = kSmall;
    const std::string old_text = "\"normalizer\": null";
    text.replace(text.find(old_text), old_text.size(),
                 absl::StrCat(old_text, ", \"", name, R"(": {"max_length": 1, "strategy": "X"})"));
    const auto parts = ParseTokenizerJson(text);
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_THAT(parts->warnings,
                ElementsAre(absl::StrCat("tokenizer.json: ", name,
                                         " is set, and ignored: texts are encoded whole")));
    EXPECT_EQ(Encode(text, "abab"), Encode(kSmall, "abab"));
  }
}

TEST(TokenizerJsonTest, AFieldOfAComponentThatIsNotKnownIsIgnoredWithAWarning) {
  const auto warnings_after = [](const std::string& old_text, const std::string& new_text) {
    const auto parts = ParseTokenizerJson(absl::StrReplaceAll(kSmall, {{old_text, new_text}}));
    EXPECT_TRUE(parts.ok()) << parts.status();
    return parts.ok() ? parts->warnings : std::vector<std::string>();
  };
  const auto warning_of = [](const std::string& path) {
    return absl::StrCat("tokenizer.json: the field ", path, " is unknown and ignored");
  };
  EXPECT_THAT(warnings_after("\"BPE\"", "\"BPE\", \"dropout\": null"), ElementsAre());
  EXPECT_THAT(warnings_after("\"BPE\"", "\"BPE\", \"colour\": 1"),
              ElementsAre(warning_of("model.colour")));
  EXPECT_THAT(warnings_after("{\"id\"", "{\"colour\": 1, \"id\""),
              ElementsAre(warning_of("added_tokens[0].colour")));
  EXPECT_THAT(warnings_after("\"model\"", "\"colour\": 1, \"model\""),
              ElementsAre(warning_of("colour")));
  EXPECT_THAT(warnings_after("\"normalizer\": null",
                             R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"},
                                {"type": "NFC", "colour": 1}], "pattern": 2})"),
              ElementsAre("tokenizer.json: the fields normalizer.pattern, "
                          "normalizer.normalizers[1].colour are unknown and ignored"));
  EXPECT_THAT(warnings_after("\"decoder\": null", R"("decoder": {"type": "Fuse", "start": 1})"),
              ElementsAre(warning_of("decoder.start")));
}

TEST(TokenizerJsonTest, AMalformedPartIsNamed) {
  const struct {
    std::string old_text, new_text, message;
  } mistakes[] = {
      {"\"a b\"", "\"a c\"", "model.merges[0]: 'c' is not in model.vocab"},
      {"\"a b\"", "\"b a\"", "model.merges[0]: 'ba' is not in model.vocab"},
      {"\"a b\"", "\"a\"", "model.merges[0]: : is string, expected"},
      {"\"a b\"", "7", "is number, expected \"left right\""},
      {"\"b\": 1", "\"b\": 0", "model.vocab.'b': is 0, as another token is; expected each of 0 to"},
      {"\"b\": 1", "\"b\": 7", "model.vocab.'b': is 7; expected each of 0 to 2 once"},
      {"\"b\": 1", "\"b\": -1", "model.vocab.'b': is number, expected an integer from 0"},
      {"\"b\": 1", "\"b\": 1.5", "model.vocab.'b': is number, expected an integer from 0"},
      {"\"id\": 3", "\"id\": 4",
       "added_tokens[0]: '<end>' has id 4, expected 3, the next one after the tokens before it"},
      {"<end>", "a", "added_tokens[0]: 'a' has id 3, expected 0, as in model.vocab"},
      {"{\"id\"", "7, {\"id\"", "added_tokens[0]: is number, expected an object"},
      {"\"merges\"", "\"unk_token\": \"?\", \"merges\"", "model.unk_token: '?' is not in"},
      {"\"model\"", "\"modell\"", "model: is absent, expected an object"},
      {"}}", "}", "is not JSON: mistake at byte"},
      {"\"post_processor\": null",
       R"("post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken":
          {"id": "s"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"s": {"ids": [9]}}})",
       "post_processor: token id 9 is not in the vocabulary of 4"},
  };
  for (const auto& mistake : mistakes) {
    const absl::Status status = ErrorAfter(mistake.old_text, mistake.new_text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(mistake.message));
  }
}

// Looking for a long text costs that text times its length.
TEST(TokenizerJsonTest, WhatAStepLooksForAndWritesIsShort) {
  const auto error_of = [](const std::string& step) {
    return std::string(
        ErrorAfter("\"normalizer\": null", absl::StrCat("\"normalizer\": ", step)).message());
  };
  const auto replace = [](size_t pattern, size_t content) {
    return absl::StrCat(R"({"type": "Replace", "pattern": {"String": ")", std::string(pattern, 'x'),
                        R"("}, "content": ")", std::string(content, 'y'), "\"}");
  };
  EXPECT_EQ(error_of(replace(1024, 1024)), "");
  EXPECT_EQ(error_of(replace(1, 64)), "");
  EXPECT_EQ(error_of(replace(1025, 1)),
            "normalizer.pattern.String: has 1025 bytes; expected at most 1024");
  EXPECT_EQ(error_of(replace(1, 1025)),
            "normalizer.content: has 1025 bytes; expected at most 1024");
  EXPECT_EQ(
      error_of(absl::StrCat(R"({"type": "Prepend", "prepend": ")", std::string(1025, 'x'), "\"}")),
      "normalizer.prepend: has 1025 bytes; expected at most 1024");
}

// Steps after one another multiply.
TEST(TokenizerJsonTest, ANormalizerOrDecoderMakesTextOnlySoMuchLonger) {
  const auto error_of = [](const std::string& section, const std::string& list, size_t content,
                           const std::string& kind) {
    const std::string step =
        kind == "Prepend"
            ? absl::StrCat(R"({"type": "Prepend", "prepend": ")", std::string(content, 'x'), "\"}")
            : absl::StrCat(R"({"type": "Replace", "pattern": {"String": "x"}, "content": ")",
                           std::string(content, 'x'), "\"}");
    return std::string(ErrorAfter(absl::StrCat("\"", section, "\": null"),
                                  absl::StrCat("\"", section, R"(": {"type": "Sequence", ")", list,
                                               "\": [", step, ", ", step, "]}"))
                           .message());
  };
  EXPECT_EQ(error_of("normalizer", "normalizers", 8, "Replace"), "");
  EXPECT_EQ(error_of("normalizer", "normalizers", 9, "Replace"),
            "normalizer: may make text 81 times as long; expected at most 64 times");
  EXPECT_EQ(error_of("decoder", "decoders", 9, "Replace"),
            "decoder: may make text 81 times as long; expected at most 64 times");
  EXPECT_EQ(error_of("normalizer", "normalizers", 512, "Prepend"), "");
  EXPECT_EQ(error_of("normalizer", "normalizers", 513, "Prepend"),
            "normalizer: all that is prepended: has 1026 bytes; expected at most 1024");
}

TEST(TokenizerJsonTest, DeepNestingIsRefusedBeforeItTakesMemory) {
  const absl::Status status = ParseTokenizerJson(std::string(1 << 20, '[')).status();
  EXPECT_EQ(std::string(status.message()), "is nested more than 32 levels deep; expected fewer");
}

TEST(TokenizerJsonTest, AFileThatWeWriteIsReadBack) {
  ByteLevelBpe bpe;
  bpe.special_tokens = {"<|endoftext|>", "quoted \"\\\n"};
  bpe.merges = {{"a", "b"}, {" ", "ab"}, {"\xC3", "\xA9"}};
  for (const auto split : {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2}) {
    bpe.split = split;
    EXPECT_THAT(Encode(WriteTokenizerJson(bpe), "ab abé<|endoftext|>"),
                ElementsAre(258, 259, 260, 0));
  }
}

TEST(TokenizerJsonTest, SpecialTokensThatCannotBeReadAgainAreRefused) {
  const auto error_of = [](const std::vector<std::string>& tokens) {
    return std::string(CheckSpecialTokens(tokens).message());
  };
  EXPECT_EQ(error_of({"<|endoftext|>", "ab", "<é>", "日"}), "");
  EXPECT_THAT(error_of({"<a>", ""}), HasSubstr("'' is empty"));
  EXPECT_THAT(error_of({"<\xff>"}), HasSubstr("is not UTF-8"));
  EXPECT_THAT(error_of({"<a>", "<b>", "<a>"}), HasSubstr("'<a>' is given twice"));
  for (const std::string letter : {"a", "é", "Ġ"}) {
    EXPECT_THAT(error_of({letter}), HasSubstr("stands for a byte")) << letter;
  }
}

TEST(TokenizerFileTest, ErrorsNameTheFile) {
  const std::string path = ::testing::TempDir() + "/bad.json";
  ASSERT_TRUE(base::WriteFileDurably(path, "{}").ok());
  EXPECT_EQ(std::string(LoadTokenizer(path).status().message()),
            path + ": model: is absent, expected an object");
  EXPECT_EQ(LoadTokenizer(path + "x").status().code(), absl::StatusCode::kNotFound);
}

TEST(TokenizerTest, AnIdBeyondTheVocabularyIsAnError) {
  auto parts = ParseTokenizerJson(kSmall);
  const auto tokenizer = *Tokenizer::Create(*std::move(parts));
  EXPECT_EQ(*tokenizer->Decode({2, 3, 1}, {}), "ab <end> b");
  EXPECT_EQ(*tokenizer->Decode({2, 3, 1}, {.skip_special_tokens = true}), "ab b");
  const absl::Status status = tokenizer->Decode({4}, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(std::string(status.message()), "token id 4 is not in the vocabulary; expected 0 to 3");
}

}  // namespace
}  // namespace megascale::tokenizer
