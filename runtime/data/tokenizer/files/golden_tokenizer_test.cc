// Token for token what PyPI's `tokenizers` makes of an adversarial corpus, under the exact pipeline
// of each family. The golden files are made by tests/golden/tokenizer/make_golden.py.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/data/tokenizer/files/sentencepiece.h"
#include "runtime/data/tokenizer/files/tokenizer_file.h"
#include "runtime/data/tokenizer/text/utf8.h"

namespace megascale::tokenizer {
namespace {

std::string PathOf(const std::string& name) {
  return absl::StrCat(::getenv("TEST_SRCDIR"), "/megascale/tests/golden/tokenizer/", name);
}

nlohmann::json ReadGolden(const std::string& name) {
  const auto text = base::ReadFile(PathOf(name), 8 << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  return nlohmann::json::parse(*text);
}

struct Case {
  std::string name;
  std::string text;
};

std::vector<Case> ReadCases() {
  std::vector<Case> cases;
  for (const auto& item : ReadGolden("cases.json")) {
    Case& added = cases.emplace_back();
    added.name = item[0];
    for (const auto& part : item[1]) {
      const std::string bytes = absl::HexStringToBytes(part[0].get<std::string>());
      for (int i = part[1]; i > 0; --i) added.text += bytes;
    }
  }
  return cases;
}

std::vector<int32_t> ReadIds(const std::string& run_lengths) {
  std::vector<int32_t> ids;
  for (const absl::string_view word : absl::StrSplit(run_lengths, ' ', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(word, '*');
    ids.insert(ids.end(), parts.size() > 1 ? std::stoul(parts[1]) : 1, std::stoi(parts[0]));
  }
  return ids;
}

std::string Join(const std::vector<int32_t>& ids) { return absl::StrJoin(ids, " "); }

class GoldenTokenizerTest : public ::testing::TestWithParam<std::string> {
 protected:
  GoldenTokenizerTest() {
    auto loaded = LoadTokenizer(PathOf(GetParam() + ".json"));
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = *std::move(loaded);
  }

  std::vector<int32_t> Encode(const std::string& text, const EncodeOptions& options) const {
    std::vector<int32_t> ids;
    tokenizer_->Encode(text, options, &ids);
    return ids;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(GoldenTokenizerTest, EncodesEveryCaseAsTheReference) {
  const std::vector<Case> cases = ReadCases();
  const auto expected = ReadGolden(GetParam() + ".expected.json");
  ASSERT_EQ(cases.size(), expected.size());
  ASSERT_GT(cases.size(), 100u);
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::vector<int32_t> ids = ReadIds(expected[i]["ids"]);
    EXPECT_EQ(Join(Encode(cases[i].text, {})), Join(ids)) << cases[i].name;
    const auto raw = expected[i].find("raw");
    EXPECT_EQ(Join(Encode(cases[i].text, {.special_tokens_in_text = false})),
              Join(raw == expected[i].end() ? ids : ReadIds(*raw)))
        << cases[i].name;
  }
}

TEST_P(GoldenTokenizerTest, DecodesEveryCaseAsTheReference) {
  const std::vector<Case> cases = ReadCases();
  const auto expected = ReadGolden(GetParam() + ".expected.json");
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::vector<int32_t> ids = Encode(cases[i].text, {.add_special_tokens = false});
    const auto decoded = tokenizer_->Decode(ids, {});
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    const auto digest = expected[i].find("text");
    if (digest == expected[i].end()) {
      EXPECT_EQ(*decoded, RepairUtf8(cases[i].text)) << cases[i].name;
    } else {
      EXPECT_EQ(base::Sha256Hex(*decoded).substr(0, 16), *digest) << cases[i].name << *decoded;
    }
  }
}

TEST_P(GoldenTokenizerTest, AStreamGivesTheTextInWholeCharacters) {
  for (const Case& item : ReadCases()) {
    const std::vector<int32_t> ids = Encode(item.text, {.add_special_tokens = false});
    DecodeStream stream(tokenizer_.get(), {});
    std::string text;
    for (const int32_t id : ids) {
      std::string piece;
      ASSERT_TRUE(stream.Push(id, &piece).ok());
      EXPECT_EQ(ValidPrefix(piece), piece.size());
      text += piece;
    }
    stream.Finish(&text);
    EXPECT_EQ(text, *tokenizer_->Decode(ids, {})) << item.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTokenizerTest,
                         ::testing::Values("gpt2", "gpt2-prefix", "neox", "llama3", "llama3-plain",
                                           "qwen2", "tekken", "o200k", "cl100k", "cl100k-former",
                                           "deepseek-llm", "deepseek-coder", "line-ends", "smollm",
                                           "numbers", "llama2", "llama2-across", "mistral",
                                           "metaspace", "metaspace-never", "unknown-fused",
                                           "unknown-dropped"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// tests/golden/tokenizer/make_sentencepiece.py makes these, with PyPI's `sentencepiece`.
TEST(SentencePieceTest, EncodesEveryCaseAsTheLibrary) {
  const std::vector<Case> cases = ReadCases();
  for (const std::string name : {"sentencepiece-fallback", "sentencepiece-plain"}) {
    const auto tokenizer = LoadTokenizer(PathOf(name + ".model"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const auto expected = ReadGolden(name + ".expected.json");
    ASSERT_EQ(cases.size(), expected.size());
    for (size_t i = 0; i < cases.size(); ++i) {
      std::vector<int32_t> ids;
      (*tokenizer)->Encode(cases[i].text, {}, &ids);
      EXPECT_EQ(Join(ids), Join(ReadIds(expected[i]["ids"]))) << cases[i].name;
    }
  }
}

// The unknown token is shown as the file writes it, where the library writes " ⁇ ".
TEST(SentencePieceTest, DecodesEveryCaseAsTheLibrary) {
  const std::vector<Case> cases = ReadCases();
  for (const std::string name : {"sentencepiece-fallback", "sentencepiece-plain"}) {
    const auto tokenizer = LoadTokenizer(PathOf(name + ".model"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const auto expected = ReadGolden(name + ".expected.json");
    size_t num_compared = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      const std::vector<int32_t> ids = ReadIds(expected[i]["ids"]);
      if (std::find(ids.begin(), ids.end(), (*tokenizer)->IdOf("<unk>")) != ids.end()) continue;
      const auto decoded = (*tokenizer)->Decode(ids, {});
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_EQ(base::Sha256Hex(*decoded).substr(0, 16), expected[i]["text"])
          << cases[i].name << ": " << *decoded;
      ++num_compared;
    }
    EXPECT_GT(num_compared, 10u) << name;
  }
}

TEST(SentencePieceTest, DecodesWhatItHasEncoded) {
  const auto tokenizer = LoadTokenizer(PathOf("sentencepiece-fallback.model"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = "  Hello  world \n é 😀 人生";
  std::vector<int32_t> ids = {1};
  (*tokenizer)->Encode(text, {}, &ids);
  EXPECT_EQ(*(*tokenizer)->Decode(ids, {.skip_special_tokens = true}), text);
}

TEST(SentencePieceTest, ACutOrOtherModelIsRefused) {
  const std::string whole = *base::ReadFile(PathOf("sentencepiece-plain.model"), 1 << 20);
  const auto error_of = [](const std::string& content) {
    return std::string(ParseSentencePiece(content).status().message());
  };
  EXPECT_EQ(error_of(""), "is no SentencePiece model; expected its protocol buffer");
  EXPECT_EQ(error_of(whole.substr(0, 1000)), error_of(""));
  EXPECT_EQ(error_of("\x0A\x03\x0A\x01"
                     "a"),
            "SentencePiece model with a type other than BPE is not supported; use its "
            "tokenizer.json");
  EXPECT_EQ(error_of(std::string("\x0A\x02\x0A\x00", 4)),
            "piece 0: expected UTF-8 of 1 to 512 bytes with a finite score");
}

}  // namespace
}  // namespace megascale::tokenizer
