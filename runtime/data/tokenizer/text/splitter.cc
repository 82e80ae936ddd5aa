#include "runtime/data/tokenizer/text/splitter.h"

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

  void Step() {
    at_ += length_;
    Look();
  }
  void SkipAll(uint8_t bits) {
    while (Is(bits)) Step();
  }

 private:
  void Look() {
    if (at_end()) return;
    const CodePoint read = ReadCodePoint(at_);
    length_ = read.length;
    bits_ = table_->BitsOf(read.value) & kClassBits;
  }

  const UnicodeTable* table_;
  const char* at_;
  const char* end_;
  uint32_t length_ = 0;
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

const char* EndOfLlama3Piece(absl::string_view text, int digits_max) {
  if (const size_t length = Contraction(text, true)) return text.data() + length;
  const Cursor begin(text);
  Cursor cursor = begin;
  if (cursor.Is(kNumberBit)) {
    for (int i = 0; i < digits_max && cursor.Is(kNumberBit); ++i) cursor.Step();
    return cursor.position();
  }
  // One character that is neither letter nor newline may go with the letters after it.
  if (!cursor.Is(kLetterBit) && !cursor.IsNewline()) cursor.Step();
  if (cursor.Is(kLetterBit)) {
    cursor.SkipAll(kLetterBit);
    return cursor.position();
  }
  cursor = begin;
  if (cursor.byte() == ' ') cursor.Step();
  if (!cursor.Is(kOther)) return EndOfLinesOrSpaces(begin);
  cursor.SkipAll(kOther);
  while (cursor.IsNewline()) cursor.Step();
  return cursor.position();
}

}  // namespace

std::optional<SplitPattern> FindSplitPattern(absl::string_view regular_expression) {
  for (const auto pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2}) {
    if (regular_expression == RegularExpressionOf(pattern)) return pattern;
  }
  return std::nullopt;
}

absl::string_view RegularExpressionOf(SplitPattern pattern) {
  if (pattern == SplitPattern::kGpt2) return kGpt2Expression;
  return pattern == SplitPattern::kLlama3 ? kLlama3Expression : kQwen2Expression;
}

absl::string_view NameOf(SplitPattern pattern) {
  if (pattern == SplitPattern::kGpt2) return "gpt2";
  return pattern == SplitPattern::kLlama3 ? "llama3" : "qwen2";
}

size_t FirstPiece(SplitPattern pattern, absl::string_view text) {
  const char* end = pattern == SplitPattern::kGpt2
                        ? EndOfGpt2Piece(text)
                        : EndOfLlama3Piece(text, pattern == SplitPattern::kLlama3 ? 3 : 1);
  return static_cast<size_t>(end - text.data());
}

}  // namespace megascale::tokenizer
