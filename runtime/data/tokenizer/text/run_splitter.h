// Splits text by an expression of one class of characters, as the pre-tokenizers of DeepSeek have
// several in a row: [\r\n], \s?\p{L}+, \s?[!-/:-~]+, \s+$. A match is a piece, and so is the text
// between matches. Threads: immutable; any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"

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
  struct Range {
    uint32_t first = 0;
    uint32_t last = 0;
  };

  bool ReadClass(absl::string_view* expression);
  bool ReadRanges(absl::string_view* expression);
  bool Has(uint32_t code_point) const;
  size_t MatchAt(absl::string_view text, size_t at) const;
  size_t FirstPieceOfLineEnds(absl::string_view text) const;

  bool space_before_ = false;  // \s?
  bool many_ = false;          // +
  bool at_line_end_ = false;   // $
  uint8_t bits_ = 0;           // of a class with a name
  bool punctuation_ = false;
  std::vector<Range> ranges_;  // in order
};

// \p{P} of the engine that runs the expressions.
bool IsPunctuation(uint32_t code_point);

}  // namespace megascale::tokenizer
