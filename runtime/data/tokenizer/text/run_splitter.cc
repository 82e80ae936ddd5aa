#include "runtime/data/tokenizer/text/run_splitter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "runtime/base/work/counted_work.h"
#include "runtime/data/tokenizer/text/unicode_class.h"
#include "runtime/data/tokenizer/text/utf8.h"

namespace megascale::tokenizer {
namespace {

bool IsSpaceAt(absl::string_view text, size_t at) {
  return at < text.size() && UnicodeTable::Get().IsSpace(ReadCodePoint(text.data() + at).value);
}

// Reads a character of a class in brackets; nullopt: a construct that is not supported.
std::optional<uint32_t> ReadMember(absl::string_view* expression) {
  if (expression->empty()) return std::nullopt;
  const char first = expression->front();
  if (first != '\\') {
    if (first == '[' || first == ']' || first == '^' || first == '&') return std::nullopt;
    const CodePoint read = ReadCodePoint(expression->data());
    expression->remove_prefix(read.length);
    return read.value;
  }
  if (expression->size() < 2) return std::nullopt;
  const char escaped = (*expression)[1];
  expression->remove_prefix(2);
  constexpr absl::string_view kSigns = R"(!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~)";
  if (escaped == 'r') return '\r';
  if (escaped == 'n') return '\n';
  if (escaped == 't') return '\t';
  if (kSigns.find(escaped) != absl::string_view::npos) return escaped;
  return std::nullopt;
}

}  // namespace

std::optional<RunSplitter> RunSplitter::Parse(absl::string_view expression) {
  RunSplitter splitter;
  if (expression == R"(\s+$)") {
    splitter.at_line_end_ = true;
    return splitter;
  }
  splitter.space_before_ = absl::ConsumePrefix(&expression, R"(\s?)");
  if (!splitter.ReadClass(&expression)) return std::nullopt;
  splitter.many_ = absl::ConsumePrefix(&expression, "+");
  if (!expression.empty()) return std::nullopt;
  return splitter;
}

bool RunSplitter::ReadClass(absl::string_view* expression) {
  if (absl::ConsumePrefix(expression, R"(\p{L})")) {
    bits_ = kLetterBit;
  } else if (absl::ConsumePrefix(expression, R"(\p{N})")) {
    bits_ = kNumberBit;
  } else if (absl::ConsumePrefix(expression, R"(\p{P})")) {
    ranges_.assign(kPunctuation, kPunctuation + kNumPunctuation);
  } else if (absl::ConsumePrefix(expression, R"(\s)")) {
    bits_ = kSpaceBit;
  } else {
    return absl::ConsumePrefix(expression, "[") && ReadRanges(expression);
  }
  return true;
}

bool RunSplitter::ReadRanges(absl::string_view* expression) {
  while (!absl::ConsumePrefix(expression, "]")) {
    // A minus without \ before it would be itself, which no family uses.
    if (absl::StartsWith(*expression, "-")) return false;
    const auto first = ReadMember(expression);
    if (!first) return false;
    CodePoints range = {*first, *first};
    if (absl::ConsumePrefix(expression, "-")) {
      const auto last = ReadMember(expression);
      if (!last || *last < *first) return false;
      range.last = *last;
    }
    ranges_.push_back(range);
  }
  std::sort(ranges_.begin(), ranges_.end(),
            [](const CodePoints& a, const CodePoints& b) { return a.first < b.first; });
  // Joined where they overlap, so that a look-up finds the only one that can hold a character.
  std::vector<CodePoints> joined;
  for (const CodePoints& range : ranges_) {
    if (!joined.empty() && range.first <= joined.back().last) {
      joined.back().last = std::max(joined.back().last, range.last);
    } else {
      joined.push_back(range);
    }
  }
  ranges_ = std::move(joined);
  return !ranges_.empty();
}

bool RunSplitter::Has(uint32_t code_point) const {
  if (bits_ != 0) return (UnicodeTable::Get().BitsOf(code_point) & bits_) != 0;
  const auto after =
      std::upper_bound(ranges_.begin(), ranges_.end(), code_point,
                       [](uint32_t value, const CodePoints& range) { return value < range.first; });
  return after != ranges_.begin() && code_point <= (after - 1)->last;
}

// Returns the end of the match that begins at `at`; `at`: there is none.
size_t RunSplitter::MatchAt(absl::string_view text, size_t at) const {
  const auto has = [&](size_t place) {
    return place < text.size() && Has(ReadCodePoint(text.data() + place).value);
  };
  size_t end = at;
  if (space_before_ && IsSpaceAt(text, at)) {
    const size_t next = at + CharacterLength(text[at]);
    if (has(next)) end = next;
  }
  if (!has(end)) return at;
  do {
    end += CharacterLength(text[end]);
  } while (many_ && has(end));
  base::CountWork(end - at);
  return end;
}

// \s+$ matches from the first of a run of spaces on: to the end of the text, or else to before the
// last newline of the run.
size_t RunSplitter::FirstPieceOfLineEnds(absl::string_view text) const {
  size_t at = 0;
  while (at < text.size()) {
    size_t end = at;
    size_t newline = 0;
    while (IsSpaceAt(text, end)) {
      if (text[end] == '\n') newline = end;
      end += CharacterLength(text[end]);
    }
    const size_t match = end == text.size() ? end : newline;
    const size_t next = end > at ? end : at + CharacterLength(text[at]);
    base::CountWork(next - at);
    if (end > at && match > at) return at == 0 ? match : at;
    at = next;
  }
  return text.size();
}

size_t RunSplitter::FirstPiece(absl::string_view text) const {
  if (at_line_end_) return FirstPieceOfLineEnds(text);
  const size_t match = MatchAt(text, 0);
  size_t at = match;
  if (match == 0) {
    at = CharacterLength(text[0]);
    while (at < text.size() && MatchAt(text, at) == at) at += CharacterLength(text[at]);
  }
  base::CountWork(at);
  return at;
}

}  // namespace megascale::tokenizer
