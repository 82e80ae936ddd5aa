// Splits text by an expression of one class of characters, as the pre-tokenizers of DeepSeek have
// several in a row: [\r\n], \s?\p{L}+, \s?[!-/:-~]+, \s+$. A match is a piece, and so is the text
// between matches. Threads: immutable; any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/data/tokenizer/text/unicode_ranges.h"

namespace megascale::tokenizer {

class RunSplitter {
 public:
  // Reads \s? (or nothing), then a class, then + (or nothing); or \s+$. A class is \p{L}, \p{N},
  // \p{P}, \s, or [...] of characters and ranges, with \r, \n, \t and \ before a sign. Returns
  // nullopt for any other expression. Requires: valid UTF-8.
  static std::optional<RunSplitter> Parse(absl::string_view expression);

  // As FirstPiece of splitter.h. Cost: O(length of the piece, and of the match after it).
  size_t FirstPiece(absl::string_view text) const;

 private:
  bool ReadClass(absl::string_view* expression);
  bool ReadRanges(absl::string_view* expression);
  bool Has(uint32_t code_point) const;
  size_t MatchAt(absl::string_view text, size_t at) const;
  size_t FirstPieceOfLineEnds(absl::string_view text) const;

  bool space_before_ = false;       // \s?
  bool many_ = false;               // +
  bool at_line_end_ = false;        // $
  uint8_t bits_ = 0;                // of a class that UnicodeTable knows; else 0
  std::vector<CodePoints> ranges_;  // of another class: in order and apart from each other
};

}  // namespace megascale::tokenizer
