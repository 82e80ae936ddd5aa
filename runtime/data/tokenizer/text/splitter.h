// Splits text into the pieces that a tokenizer encodes one by one: words with the space before
// them, numbers, punctuation, whitespace. Written by hand after the patterns that tokenizer.json
// files carry as regular expressions; the pieces are those of the reference's engine.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <optional>

#include "absl/strings/string_view.h"

namespace megascale::tokenizer {

enum class SplitPattern {
  kDigits,   // every number alone; all between numbers is one piece
  kNumbers,  // as kDigits, but numbers in a row are one piece
  kGpt2,     // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kLlama3,   // contractions in any case; digits in groups of three; newlines close a piece
  kQwen2,    // as kLlama3, but every digit alone
  kTekken,   // of Mistral-Nemo: words end where capital letters begin; every digit alone
  kO200k,    // as kTekken, with contractions after a word, and digits in groups of three
  kCl100k,   // as kLlama3, with possessive quantifiers: spaces at the end of a text are one piece
};

// Returns the pattern whose regular expression this is, as tokenizer.json files write it; nullopt:
// it is none of these.
std::optional<SplitPattern> FindSplitPattern(absl::string_view regular_expression);
// Returns the regular expression, as tokenizer.json files have it. Requires: not kDigits or
// kNumbers, which files name without an expression.
absl::string_view RegularExpressionOf(SplitPattern pattern);
// Returns "gpt2", "llama3", "qwen2" and so on.
absl::string_view NameOf(SplitPattern pattern);

// Returns the length in bytes of the first piece of `text`. The pieces of the rest do not depend on
// it. Requires: `text` is valid UTF-8 and not empty. Cost: O(length of the piece); whitespace is
// read at most twice.
size_t FirstPiece(SplitPattern pattern, absl::string_view text);

}  // namespace megascale::tokenizer
