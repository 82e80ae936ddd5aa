#include "runtime/data/tokenizer/text/splitter.h"

#include <limits>

#include "runtime/base/work/counted_work.h"
#include "runtime/data/tokenizer/text/unicode_class.h"
#include "runtime/data/tokenizer/text/utf8.h"

namespace megascale::tokenizer {
namespace {

constexpr absl::string_view kGpt2Expression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kLlama3Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kQwen2Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kTekkenExpression =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kO200kExpression =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// As tiktoken writes cl100k today. In the reference's engine {1,3}+ takes all digits.
constexpr absl::string_view kCl100kExpression =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+)"
    R"(|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
constexpr absl::string_view kFormerCl100kExpression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct NamedPattern {
  SplitPattern pattern;
  absl::string_view name;
  absl::string_view expression;  // "": files name the pattern otherwise
};
constexpr NamedPattern kPatterns[] = {
    {SplitPattern::kDigits, "digits", ""},
    {SplitPattern::kNumbers, "numbers", ""},
    {SplitPattern::kGpt2, "gpt2", kGpt2Expression},
    {SplitPattern::kLlama3, "llama3", kLlama3Expression},
    {SplitPattern::kQwen2, "qwen2", kQwen2Expression},
    {SplitPattern::kTekken, "tekken", kTekkenExpression},
    {SplitPattern::kO200k, "o200k", kO200kExpression},
    {SplitPattern::kCl100k, "cl100k", kCl100kExpression},
    {SplitPattern::kLlama3, "llama3", kFormerCl100kExpression},
};

const NamedPattern& Find(SplitPattern pattern) {
  for (const NamedPattern& named : kPatterns) {
    if (named.pattern == pattern) return named;
  }
  return kPatterns[0];
}

constexpr uint8_t kClassBits = kLetterBit | kNumberBit | kSpaceBit;
constexpr uint8_t kOther = 0;
constexpr uint32_t kLongS = 0x17F;  // equals "s" where case does not count

// A position in text, with the class of the character there.
class Cursor {
 public:
  explicit Cursor(absl::string_view text)
      : table_(&UnicodeTable::Get()), at_(text.data()), end_(text.data() + text.size()) {
    Look();
  }

  bool at_end() const { return at_ == end_; }
  const char* position() const { return at_; }
  char byte() const { return *at_; }
  // Is no class at the end.
  bool Is(uint8_t bits) const { return !at_end() && bits_ == bits; }
  bool IsNewline() const { return !at_end() && (*at_ == '\n' || *at_ == '\r'); }
  // A number as the pre-tokenizer Digits knows it.
  bool IsDigit() const {
    return !at_end() && ((all_bits_ & kNumberBit) != 0) != ((all_bits_ & kOtherDigitBit) != 0);
  }
  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and [\p{Ll}\p{Lm}\p{Lo}\p{M}]: letters without case and
  // marks are both.
  bool IsUpper() const { return IsCased(kLowerBit); }
  bool IsLower() const { return IsCased(kUpperBit); }

  void Step() {
    at_ += length_;
    Look();
  }
  void SkipAll(uint8_t bits) {
    while (Is(bits)) Step();
  }

 private:
  bool IsCased(uint8_t other_case) const {
    return !at_end() && (all_bits_ & (kLetterBit | kMarkBit)) != 0 && (all_bits_ & other_case) == 0;
  }
  void Look() {
    if (at_end()) return;
    const CodePoint read = ReadCodePoint(at_);
    length_ = read.length;
    all_bits_ = table_->BitsOf(read.value);
    bits_ = all_bits_ & kClassBits;
  }

  const UnicodeTable* table_;
  const char* at_;
  const char* end_;
  uint32_t length_ = 0;
  uint8_t all_bits_ = 0;
  uint8_t bits_ = 0;
};

char LowerCase(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 'a' - 'A') : c; }

// Returns the length of 's, 't, 're, 've, 'm, 'll or 'd at the beginning of `text`; 0: none.
size_t Contraction(absl::string_view text, bool any_case) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  const auto letter = [&](size_t i) { return any_case ? LowerCase(text[i]) : text[i]; };
  const char first = letter(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (any_case && CharacterLength(first) == 2 && ReadCodePoint(text.data() + 1).value == kLongS) {
    return 3;
  }
  if (text.size() < 3) return 0;
  const char second = letter(2);
  if (second == 'e' && (first == 'r' || first == 'v')) return 3;
  return first == 'l' && second == 'l' ? 3 : 0;
}

// The end of \s+(?!\S)|\s+ at a whitespace character: all of the run at the text's end, else all
// but its last character, which goes with the next piece, unless it is alone.
const char* EndOfSpaces(Cursor cursor) {
  const char* last = nullptr;
  const char* const begin = cursor.position();
  while (cursor.Is(kSpaceBit)) {
    last = cursor.position();
    cursor.Step();
  }
  base::CountWork(static_cast<size_t>(cursor.position() - begin));
  return cursor.at_end() || last == begin ? cursor.position() : last;
}

// As EndOfSpaces, with \s*[\r\n]+ before: a run that has newlines ends after the last of them.
const char* EndOfLinesOrSpaces(Cursor cursor) {
  const Cursor begin = cursor;
  const char* after_newline = nullptr;
  while (cursor.Is(kSpaceBit)) {
    if (cursor.IsNewline()) after_newline = cursor.position() + 1;
    cursor.Step();
  }
  base::CountWork(static_cast<size_t>(cursor.position() - begin.position()));
  return after_newline != nullptr ? after_newline : EndOfSpaces(begin);
}

const char* EndOfGpt2Piece(absl::string_view text) {
  if (const size_t length = Contraction(text, false)) return text.data() + length;
  const Cursor begin(text);
  Cursor cursor = begin;
  if (cursor.byte() == ' ') cursor.Step();
  for (const uint8_t bits : {uint8_t{kLetterBit}, uint8_t{kNumberBit}, kOther}) {
    if (!cursor.Is(bits)) continue;
    cursor.SkipAll(bits);
    return cursor.position();
  }
  return EndOfSpaces(begin);
}

// The end of \p{N}{1,digits_max}. Requires: a number.
const char* EndOfDigits(Cursor cursor, int digits_max) {
  for (int i = 0; i < digits_max && cursor.Is(kNumberBit); ++i) cursor.Step();
  return cursor.position();
}

// The end of punctuation, with newlines after it, perhaps mixed with slashes, or of whitespace.
const char* EndOfOther(const Cursor& begin, bool with_slashes) {
  Cursor cursor = begin;
  if (cursor.byte() == ' ') cursor.Step();
  if (!cursor.Is(kOther)) return EndOfLinesOrSpaces(begin);
  cursor.SkipAll(kOther);
  while (cursor.IsNewline() || (with_slashes && !cursor.at_end() && cursor.byte() == '/')) {
    cursor.Step();
  }
  return cursor.position();
}

const char* EndOfLlama3Piece(absl::string_view text, int digits_max) {
  if (const size_t length = Contraction(text, true)) return text.data() + length;
  const Cursor begin(text);
  Cursor cursor = begin;
  if (cursor.Is(kNumberBit)) return EndOfDigits(cursor, digits_max);
  // One character that is neither letter nor newline may go with the letters after it.
  if (!cursor.Is(kLetterBit) && !cursor.IsNewline()) cursor.Step();
  if (!cursor.Is(kLetterBit)) return EndOfOther(begin, /*with_slashes=*/false);
  cursor.SkipAll(kLetterBit);
  return cursor.position();
}

// As Llama 3, but spaces at the end of the text are one piece, also with newlines, and digits in a
// row are one piece.
const char* EndOfCl100kPiece(absl::string_view text) {
  Cursor cursor(text);
  while (cursor.Is(kSpaceBit)) cursor.Step();
  base::CountWork(static_cast<size_t>(cursor.position() - text.data()));
  if (cursor.at_end()) return cursor.position();
  return EndOfLlama3Piece(text, std::numeric_limits<int>::max());
}

// The end of [upper]*[lower]+; null: no such word begins here. Letters of both classes may end the
// first part or begin the second, so the word ends with the last lower one.
const char* EndOfLowerWord(Cursor cursor) {
  const char* after_lower = nullptr;
  const char* const begin = cursor.position();
  while (cursor.IsUpper()) {
    const bool is_lower = cursor.IsLower();
    cursor.Step();
    if (is_lower) after_lower = cursor.position();
  }
  base::CountWork(static_cast<size_t>(cursor.position() - begin));
  if (!cursor.IsLower()) return after_lower;
  while (cursor.IsLower()) cursor.Step();
  return cursor.position();
}

// The end of [upper]+[lower]*; null: no such word begins here.
const char* EndOfUpperWord(Cursor cursor) {
  if (!cursor.IsUpper()) return nullptr;
  while (cursor.IsUpper()) cursor.Step();
  while (cursor.IsLower()) cursor.Step();
  return cursor.position();
}

const char* EndOfTekkenPiece(absl::string_view text, bool is_o200k) {
  const Cursor begin(text);
  Cursor after = begin;  // the character that may go with the word after it
  const bool may_skip = !begin.Is(kLetterBit) && !begin.Is(kNumberBit) && !begin.IsNewline();
  if (may_skip) after.Step();
  for (const auto end_of : {EndOfLowerWord, EndOfUpperWord}) {
    const char* end = may_skip ? end_of(after) : nullptr;
    if (end == nullptr) end = end_of(begin);
    if (end == nullptr) continue;
    const auto length = static_cast<size_t>(end - text.data());
    return end + (is_o200k ? Contraction(text.substr(length), true) : 0);
  }
  if (begin.Is(kNumberBit)) return EndOfDigits(begin, is_o200k ? 3 : 1);
  return EndOfOther(begin, /*with_slashes=*/true);
}

const char* EndOfNumbers(absl::string_view text, bool one_by_one) {
  Cursor cursor(text);
  const bool is_number = cursor.IsDigit();
  cursor.Step();
  while (!cursor.at_end() && cursor.IsDigit() == is_number && !(is_number && one_by_one)) {
    cursor.Step();
  }
  return cursor.position();
}

const char* EndOfPiece(SplitPattern pattern, absl::string_view text) {
  switch (pattern) {
    case SplitPattern::kDigits:
      return EndOfNumbers(text, /*one_by_one=*/true);
    case SplitPattern::kNumbers:
      return EndOfNumbers(text, /*one_by_one=*/false);
    case SplitPattern::kGpt2:
      return EndOfGpt2Piece(text);
    case SplitPattern::kLlama3:
      return EndOfLlama3Piece(text, 3);
    case SplitPattern::kQwen2:
      return EndOfLlama3Piece(text, 1);
    case SplitPattern::kCl100k:
      return EndOfCl100kPiece(text);
    case SplitPattern::kTekken:
      return EndOfTekkenPiece(text, /*is_o200k=*/false);
    case SplitPattern::kO200k:
      return EndOfTekkenPiece(text, /*is_o200k=*/true);
  }
  return text.data() + text.size();
}

}  // namespace

std::optional<SplitPattern> FindSplitPattern(absl::string_view regular_expression) {
  for (const NamedPattern& named : kPatterns) {
    if (!named.expression.empty() && regular_expression == named.expression) return named.pattern;
  }
  return std::nullopt;
}

absl::string_view RegularExpressionOf(SplitPattern pattern) { return Find(pattern).expression; }

absl::string_view NameOf(SplitPattern pattern) { return Find(pattern).name; }

size_t FirstPiece(SplitPattern pattern, absl::string_view text) {
  const auto length = static_cast<size_t>(EndOfPiece(pattern, text) - text.data());
  base::CountWork(length);
  return length;
}

}  // namespace megascale::tokenizer
