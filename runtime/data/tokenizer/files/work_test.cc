// What is read from files of tokenizers costs work in proportion to the files, and what is encoded
// with them in proportion to the text. Each test doubles its worst inputs.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/work/counted_work.h"
#include "runtime/data/tokenizer/files/sentencepiece.h"
#include "runtime/data/tokenizer/files/settings.h"
#include "runtime/data/tokenizer/files/tokenizer_json.h"
#include "runtime/data/tokenizer/files/vocabulary_files.h"

namespace megascale::tokenizer {
namespace {

using Content = std::function<std::string(size_t size)>;

// Joins what `part` gives for 0, 1, … until it has about `size` bytes.
std::string Until(size_t size, const std::function<std::string(size_t index)>& part) {
  std::string all;
  for (size_t i = 0; all.size() < size; ++i) absl::StrAppend(&all, part(i));
  return all;
}

std::string File(const std::string& vocabulary, const std::string& merges,
                 const std::string& others = "") {
  return absl::StrCat(R"({"model": {"type": "BPE", "vocab": {"a": 0, "aa": 1)", vocabulary,
                      R"(}, "merges": ["a a")", merges, "]}", others, "}");
}

// `function` gets a content and returns nothing.
template <typename Function>
void ExpectLinear(const Content& content, size_t size, Function function, size_t index) {
  const auto work = [&](size_t bytes) {
    const std::string text = content(bytes);
    return base::WorkOf([&] { function(text); });
  };
  const int64_t before = work(size);
  EXPECT_GE(before, static_cast<int64_t>(size)) << index;
  EXPECT_LE(work(2 * size), before * 5 / 2) << index;
}

TEST(TokenizerWorkTest, ReadingATokenizerJsonGrowsAsTheFile) {
  const std::vector<Content> contents = {
      [](size_t size) {
        return File(Until(size, [](size_t i) { return absl::StrCat(",\"t", i, "\":", i + 2); }),
                    "");
      },
      [](size_t size) { return File("", Until(size, [](size_t) { return ",\"a a\""; })); },
      [](size_t size) { return File(absl::StrCat(",\"", std::string(size, 'x'), "\":2"), ""); },
      [](size_t size) {
        return File(Until(size, [](size_t i) { return absl::StrCat(",\"a\":", i); }), "");
      },
      [](size_t size) {
        return File("", "",
                    absl::StrCat(",\"added_tokens\":[",
                                 Until(size,
                                       [](size_t i) {
                                         return absl::StrCat(i == 0 ? "" : ",", "{\"id\":", i + 2,
                                                             ",\"content\":\"t", i, "\"}");
                                       }),
                                 "]"));
      },
      [](size_t size) {
        return File("", "",
                    absl::StrCat(",\"added_tokens\":[{\"id\":2,\"content\":\"",
                                 std::string(size, 'a'), "\"}]"));
      },
      [](size_t size) {
        return File("", "",
                    absl::StrCat(R"(,"normalizer":{"type":"Sequence","normalizers":[)",
                                 Until(size,
                                       [](size_t i) {
                                         return absl::StrCat(i == 0 ? "" : ",",
                                                             R"({"type":"NFC"})");
                                       }),
                                 "]}"));
      },
      [](size_t size) {
        return File(
            "", "",
            absl::StrCat(R"(,"post_processor":{"type":"TemplateProcessing",)",
                         R"("special_tokens":{"s":{"ids":[0]}},)", R"("single":[{"Sequence":{}})",
                         Until(size, [](size_t) { return R"(,{"SpecialToken":{"id":"s"}})"; }),
                         "]}"));
      },
      [](size_t size) { return std::string(size, '['); },
      [](size_t size) { return absl::StrCat("\"", Until(size, [](size_t) { return "\\\""; })); },
  };
  for (size_t i = 0; i < contents.size(); ++i) {
    ExpectLinear(
        contents[i], 1 << 15,
        [](const std::string& text) {
          auto parts = ParseTokenizerJson(text);
          if (parts.ok()) Tokenizer::Create(*std::move(parts)).IgnoreError();
        },
        i);
  }
}

TEST(TokenizerWorkTest, ReadingSettingsGrowsAsTheFile) {
  const std::vector<Content> contents = {
      [](size_t size) {
        return absl::StrCat("{\"added_tokens_decoder\":{",
                            Until(size,
                                  [](size_t i) {
                                    return absl::StrCat(i == 0 ? "" : ",", "\"", i + 2,
                                                        "\":{\"content\":\"t", i, "\"}");
                                  }),
                            "}}");
      },
      [](size_t size) {
        return absl::StrCat(
            "{\"additional_special_tokens\":[",
            Until(size, [](size_t i) { return absl::StrCat(i == 0 ? "" : ",", "\"t", i, "\""); }),
            "]}");
      },
      [](size_t size) {
        return absl::StrCat(
            "{\"x\":0", Until(size, [](size_t i) { return absl::StrCat(",\"x", i, "\":0"); }), "}");
      },
  };
  for (size_t i = 0; i < contents.size(); ++i) {
    ExpectLinear(
        contents[i], 1 << 15,
        [](const std::string& text) {
          auto parts = ParseTokenizerJson(File("", ""));
          ASSERT_TRUE(parts.ok());
          SettingsFiles files;
          files.tokenizer_config = text;
          const auto settings = ReadSettings(files, TokenizerClass::kPlain);
          ASSERT_TRUE(settings.ok()) << settings.status();
          EXPECT_TRUE(ApplySettings(*settings, /*is_json=*/true, &*parts).ok());
        },
        i);
  }
}

TEST(TokenizerWorkTest, ReadingMergesGrowsAsTheFile) {
  Settings settings;
  settings.tokenizer_class = TokenizerClass::kQwen2;
  const std::vector<Content> contents = {
      [](size_t size) { return Until(size, [](size_t) { return "a a\n"; }); },
      [](size_t size) { return Until(size, [](size_t) { return "\r"; }); },
      [](size_t size) { return Until(size, [](size_t) { return "\xC2\xA0"; }); },
      [](size_t size) { return Until(size, [](size_t) { return "a "; }); },
      [](size_t size) { return std::string(size, 'x'); },
  };
  for (size_t i = 0; i < contents.size(); ++i) {
    ExpectLinear(
        contents[i], 1 << 15,
        [&](const std::string& text) {
          ParseVocabularyFiles(R"({"a": 0, "aa": 1})", text, settings).IgnoreError();
        },
        i);
  }
}

// A message of protocol buffers: its key, its size of up to three digits to base 128, its content.
std::string Message(char key, const std::string& content) {
  const size_t size = content.size();
  const auto low = [](size_t value) { return static_cast<char>((value & 127) | 128); };
  return absl::StrCat(std::string{key, low(size), low(size >> 7), static_cast<char>(size >> 14)},
                      content);
}

std::string PieceOf(const std::string& text, float score) {
  std::string number(sizeof(score), '\0');
  std::memcpy(number.data(), &score, sizeof(score));
  return Message('\x0A', absl::StrCat(Message('\x0A', text), "\x15", number));
}

// A model of type BPE whose normalizer changes nothing.
std::string ModelOf(const std::string& pieces) {
  return absl::StrCat(pieces, Message('\x12', "\x18\x02"),
                      Message('\x1A', std::string("\x20\0", 2)));
}

TEST(TokenizerWorkTest, ReadingASentencePieceModelGrowsAsTheFile) {
  const std::vector<Content> contents = {
      [](size_t size) {
        return ModelOf(Until(size, [](size_t i) { return PieceOf(absl::StrCat("t", i), 0); }));
      },
      // The longest pieces, with as many ways to make one of two others as there are.
      [](size_t size) {
        return ModelOf(Until(size, [](size_t i) {
          return PieceOf(absl::StrCat(std::string(1 + i % 506, 'a'), i / 506),
                         -static_cast<float>(i));
        }));
      },
      [](size_t size) { return Until(size, [](size_t) { return std::string("\x20\0", 2); }); },
  };
  for (size_t i = 0; i < contents.size(); ++i) {
    // The second one begins at pieces of their full length.
    ExpectLinear(
        contents[i], i == 1 ? 1 << 18 : 1 << 15,
        [](const std::string& text) {
          ParseSentencePiece(text).IgnoreError();
          ParseSentencePieceAsLlama(text, {}).IgnoreError();
          base::CountWork(text.size() / 2);  // what is refused at once may cost nothing
        },
        i);
  }
}

TEST(TokenizerWorkTest, EncodingWithASentencePieceModelGrowsAsTheText) {
  const std::string pieces = absl::StrCat(PieceOf("▁", 0), PieceOf("a", -1), PieceOf("aa", -2),
                                          PieceOf("aaaa", -3), PieceOf("▁a", -4), PieceOf("b", -5),
                                          PieceOf("a▁", -6), PieceOf("ba", -7), PieceOf("baa", -8));
  for (const bool legacy : {false, true}) {
    auto parts = ParseSentencePieceAsLlama(ModelOf(pieces), {.legacy = legacy});
    ASSERT_TRUE(parts.ok()) << parts.status();
    const auto tokenizer = *Tokenizer::Create(*std::move(parts));
    size_t index = 0;
    for (const std::string unit : {"a", " ", "ba", "a ", "\n", "é", "▁"}) {
      ExpectLinear([&](size_t size) { return Until(size, [&](size_t) { return unit; }); }, 1 << 14,
                   [&](const std::string& text) {
                     std::vector<int32_t> ids;
                     tokenizer->Encode(text, {}, &ids);
                   },
                   index++);
    }
  }
}

}  // namespace
}  // namespace megascale::tokenizer
