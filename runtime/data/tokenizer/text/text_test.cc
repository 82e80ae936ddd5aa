// Unicode as the reference sees it, for every code point, and the splitters. The golden files are
// made by tests/golden/tokenizer/make_unicode.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/base/work/counted_work.h"
#include "runtime/data/tokenizer/text/byte_alphabet.h"
#include "runtime/data/tokenizer/text/nfc.h"
#include "runtime/data/tokenizer/text/run_splitter.h"
#include "runtime/data/tokenizer/text/splitter.h"
#include "runtime/data/tokenizer/text/unicode_class.h"
#include "runtime/data/tokenizer/text/utf8.h"

namespace megascale::tokenizer {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kCodePointsEnd = 0x110000;

bool IsSurrogate(uint32_t code_point) { return code_point >= 0xD800 && code_point < 0xE000; }

// Returns the lines of a golden file, split at spaces.
std::vector<std::vector<std::string>> GoldenLines(const std::string& name) {
  const auto text = base::ReadFile(
      absl::StrCat(::getenv("TEST_SRCDIR"), "/megascale/tests/golden/tokenizer/", name), 1 << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  std::vector<std::vector<std::string>> lines;
  for (const absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    lines.push_back(absl::StrSplit(line, ' '));
  }
  return lines;
}

uint32_t Hexadecimal(const std::string& digits) {
  return static_cast<uint32_t>(std::stoul(digits, nullptr, 16));
}

std::string Utf8(uint32_t code_point) {
  std::string text;
  AppendCodePoint(code_point, &text);
  return text;
}

TEST(UnicodeTest, TheClassOfEveryCodePointIsThatOfTheReference) {
  const auto lines = GoldenLines("unicode_classes.txt");
  const UnicodeTable& table = UnicodeTable::Get();
  ASSERT_GT(lines.size(), 1000u);
  for (size_t i = 0; i < lines.size(); ++i) {
    const uint32_t end = i + 1 < lines.size() ? Hexadecimal(lines[i + 1][0]) : kCodePointsEnd;
    for (uint32_t code_point = Hexadecimal(lines[i][0]); code_point < end; ++code_point) {
      std::string found = "-";
      if (table.IsLetter(code_point)) found = "L";
      if (table.IsNumber(code_point)) found = "N";
      if (table.IsSpace(code_point)) found = "S";
      found += table.IsWord(code_point) ? "w" : "-";
      const uint8_t bits = table.BitsOf(code_point);
      found += (bits & kUpperBit) != 0   ? "u"
               : (bits & kLowerBit) != 0 ? "l"
               : (bits & kMarkBit) != 0  ? "m"
                                         : "-";
      found += (bits & kOtherDigitBit) != 0 ? "d" : "-";
      ASSERT_EQ(found, lines[i][1]) << absl::StrCat(absl::Hex(code_point));
    }
  }
}

TEST(UnicodeTest, NfcOfEveryCodePointAndItsNeighboursIsThatOfTheReference) {
  constexpr uint32_t kBlock = 4096;
  for (const auto& line : GoldenLines("nfc.txt")) {
    const uint32_t first = Hexadecimal(line[0]);
    std::string all;
    for (uint32_t code_point = first; code_point < first + kBlock; ++code_point) {
      if (IsSurrogate(code_point)) continue;
      const std::string c = Utf8(code_point);
      for (const std::string& text : {c, "A" + c, "A\u0345" + c, c + "\u0334", c + "\u0301"}) {
        absl::StrAppend(&all, ToNfc(text), "\n");
      }
    }
    EXPECT_EQ(base::Sha256Hex(all).substr(0, 16), line[1]) << line[0];
  }
}

// The worst order: each mark belongs before all that came earlier.
TEST(UnicodeTest, NfcOfARunOfMarksTakesWorkInProportionToIt) {
  constexpr const char* kMarks[] = {"\u0345", "\u0301", "\u0327", "\u0334"};  // falling classes
  int64_t before = 0;
  for (int64_t size = 1 << 10; size <= 1 << 17; size *= 2) {
    std::string text = "x", sorted = "x";
    for (int i = 0; i < 4; ++i) {
      for (int64_t k = 0; k < size / 4; ++k) {
        text += kMarks[i];
        sorted += kMarks[3 - i];
      }
    }
    int64_t num_moves = 0;
    const std::string nfc = ToNfc(text, &num_moves);
    EXPECT_EQ(nfc, sorted) << size;
    EXPECT_GE(num_moves, size);
    if (before > 0) {
      EXPECT_LE(num_moves, 2 * before);
    }
    before = num_moves;
  }
}

// Runs around the length from which marks are sorted by counting.
TEST(UnicodeTest, NfcKeepsTheOrderOfMarksOfOneClassInRunsOfEveryLength) {
  const std::string above[] = {"\u0306", "\u0310", "\u030F"};  // class 230
  const std::string below[] = {"\u0333", "\u032B"};            // class 220
  for (int length = 2; length < 100; ++length) {
    std::string text = "x", low, high;
    for (int i = 0; i < length; ++i) {
      const bool is_low = i % 3 == 1;
      const std::string& mark = is_low ? below[i % 2] : above[i % 3];
      text += mark;
      (is_low ? low : high) += mark;
    }
    EXPECT_EQ(ToNfc(text + "\u00E9"), "x" + low + high + "\u00E9") << length;
  }
}

TEST(Utf8Test, EveryCodePointIsReadAsWritten) {
  for (uint32_t code_point = 0; code_point < kCodePointsEnd; ++code_point) {
    if (IsSurrogate(code_point)) continue;
    const std::string text = Utf8(code_point);
    ASSERT_EQ(ValidPrefix(text), text.size());
    ASSERT_EQ(ReadCodePoint(text.data()).value, code_point);
    ASSERT_EQ(ReadLastCodePoint("a" + text).value, code_point);
    ASSERT_EQ(CharacterLength(text[0]), text.size());
  }
}

TEST(Utf8Test, EachMaximalInvalidSequenceBecomesOneReplacementCharacter) {
  EXPECT_EQ(RepairUtf8("a\xFF\xC3(\xE2\x82z"), "a\uFFFD\uFFFD(\uFFFDz");
  EXPECT_EQ(RepairUtf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(RepairUtf8("\xC0\xAF\xF5\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(RepairUtf8("\xF0\x9F\x98"), "\uFFFD");
}

TEST(Utf8Test, TextInPiecesIsRepairedAsTheWhole) {
  const std::string text = "é😀\xE2\x82\xFFx\xF0\x9F\x98\x80\xED\xA0";
  for (size_t piece = 1; piece < 5; ++piece) {
    Utf8Repair repair;
    std::string out;
    for (size_t at = 0; at < text.size(); at += piece) {
      repair.Push(absl::string_view(text).substr(at, piece), &out);
      ASSERT_EQ(ValidPrefix(out), out.size());
    }
    repair.Finish(&out);
    EXPECT_EQ(out, RepairUtf8(text)) << piece;
  }
}

TEST(ByteAlphabetTest, EveryByteHasALetterOfItsOwn) {
  std::string bytes, back;
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<char>(byte));
  ASSERT_TRUE(BytesOfToken(TokenOfBytes(bytes), &back));
  EXPECT_EQ(back, bytes);
  EXPECT_EQ(TokenOfBytes(" a\n"), "ĠaĊ");
  EXPECT_FALSE(BytesOfToken("a b", &back));
  EXPECT_FALSE(BytesOfToken("▁", &back));
}

std::vector<std::string> Split(SplitPattern pattern, absl::string_view text) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const size_t length = FirstPiece(pattern, text);
    pieces.emplace_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return pieces;
}

TEST(SplitterTest, PatternsAreFoundByTheirRegularExpressions) {
  for (const auto pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2,
                             SplitPattern::kTekken, SplitPattern::kO200k}) {
    EXPECT_EQ(FindSplitPattern(RegularExpressionOf(pattern)), pattern);
  }
  EXPECT_EQ(FindSplitPattern("\\w+"), std::nullopt);
}

TEST(SplitterTest, Gpt2SplitsContractionsWordsNumbersAndSpaces) {
  EXPECT_THAT(Split(SplitPattern::kGpt2, "I'm 12345!  ok \n\n"),
              ElementsAre("I", "'m", " 12345", "!", " ", " ok", " \n\n"));
  EXPECT_THAT(Split(SplitPattern::kGpt2, "I'M\u3000x"), ElementsAre("I", "'", "M", "\u3000", "x"));
}

TEST(SplitterTest, Llama3GroupsDigitsByThreeAndQwen2TakesThemOneByOne) {
  EXPECT_THAT(Split(SplitPattern::kLlama3, "I'M 12345!\n\n  (ok"),
              ElementsAre("I", "'M", " ", "123", "45", "!\n\n", " ", " (", "ok"));
  EXPECT_THAT(Split(SplitPattern::kQwen2, "x 12 \n \ny"),
              ElementsAre("x", " ", "1", "2", " \n \n", "y"));
  EXPECT_THAT(Split(SplitPattern::kLlama3, "'ſ'\u0301a"), ElementsAre("'ſ", "'\u0301", "a"));
}

TEST(SplitterTest, TekkenEndsWordsBeforeCapitalLetters) {
  EXPECT_THAT(Split(SplitPattern::kTekken, "aB CDef 中文A12./\n/x"),
              ElementsAre("a", "B", " CDef", " 中文", "A", "1", "2", "./\n/", "x"));
  EXPECT_THAT(Split(SplitPattern::kO200k, "isn't 1234 DON'T"),
              ElementsAre("isn't", " ", "123", "4", " DON'T"));
}

// The reference's engine refuses a range whose end comes before its begin, too. DeepSeek's own
// ranges only overlap.
TEST(SplitterTest, ARangeThatDescendsIsRefused) {
  EXPECT_FALSE(RunSplitter::Parse("[z-a]+").has_value());
  EXPECT_FALSE(RunSplitter::Parse("[퟿-가]").has_value());
  const auto splitter = RunSplitter::Parse("[一-龥ࠀ-一가-퟿]+");
  ASSERT_TRUE(splitter.has_value());
  EXPECT_EQ(splitter->FirstPiece("一가z-a"), std::string("一가").size());
}

// Runs that a pattern reads to their end before it takes only a part, or takes another way.
TEST(SplitterTest, TheWorkOfEveryPatternGrowsAsTheText) {
  const std::string units[] = {" ",      "\n",  " \n",  "\n  x",   "A",  "a",     "ʰ",
                               "ʰA",     "中",  "中A",  "A\u0301", "1",  "1a",    "'",
                               "'s",     "'S.", "/\n",  ".",       " .", "\r\n/", "½ ",
                               "\u3000", "\t1", " A\n", "a  b\n",  "🜚"};
  constexpr size_t kSize = 1 << 13;
  const auto repeat = [](const std::string& unit, size_t size) {
    std::string text;
    while (text.size() < size) text += unit;
    return text + "x";
  };
  const auto check = [&](const auto& first_piece, const std::string& name) {
    for (const std::string& unit : units) {
      const auto work = [&](size_t size) {
        const std::string text = repeat(unit, size);
        return base::WorkOf([&] {
          for (absl::string_view rest = text; !rest.empty();) rest.remove_prefix(first_piece(rest));
        });
      };
      EXPECT_GE(work(kSize), static_cast<int64_t>(kSize)) << name << " " << unit;
      EXPECT_LE(work(2 * kSize), work(kSize) * 5 / 2) << name << " " << unit;
    }
  };
  for (const auto pattern :
       {SplitPattern::kDigits, SplitPattern::kNumbers, SplitPattern::kGpt2, SplitPattern::kLlama3,
        SplitPattern::kQwen2, SplitPattern::kTekken, SplitPattern::kO200k, SplitPattern::kCl100k}) {
    check([&](absl::string_view rest) { return FirstPiece(pattern, rest); },
          std::string(NameOf(pattern)));
  }
  for (const std::string expression :
       {R"(\s+$)", R"(\s?\p{L}+)", R"([\r\n])", R"(\p{N}+)", R"(\s?[!-/:-~]+)", R"(\s)"}) {
    const auto splitter = RunSplitter::Parse(expression);
    ASSERT_TRUE(splitter.has_value()) << expression;
    check([&](absl::string_view rest) { return splitter->FirstPiece(rest); }, expression);
  }
}

TEST(SplitterTest, DigitsAreAloneOrInRuns) {
  EXPECT_THAT(Split(SplitPattern::kDigits, "a 12½b"), ElementsAre("a ", "1", "2", "½", "b"));
  EXPECT_THAT(Split(SplitPattern::kNumbers, "a 12½b"), ElementsAre("a ", "12½", "b"));
}

}  // namespace
}  // namespace megascale::tokenizer
