// Tokens that are found in text as they are, before a tokenizer splits it: "<|endoftext|>", and
// whatever else a tokenizer.json adds to its model's vocabulary.
// Threads: immutable; any.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "runtime/data/tokenizer/longest_matches.h"

namespace megascale::tokenizer {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;      // left out by a decoder that skips special tokens
  bool single_word = false;  // not beside a word character
  bool lstrip = false;       // takes the whitespace before it
  bool rstrip = false;       // takes the whitespace after it
  bool normalized = false;   // looked for in normalised text
};

// Finds added tokens in text, from left to right; where several begin at one place, the longest.
class AddedTokenFinder {
 public:
  struct Pattern {
    std::string text;  // not empty
    AddedToken token;
  };

  // If several patterns have the same text, the first one counts.
  explicit AddedTokenFinder(std::vector<Pattern> patterns);

  bool empty() const { return patterns_.empty(); }

  // A part of a text: a token, or what is between tokens (id -1, not empty).
  struct Part {
    absl::string_view text;
    int32_t id = -1;
  };
  // Calls `on_part` for each part of `text` in order. With `skip_special`, special tokens stay part
  // of the text around them. Requires: valid UTF-8. Cost: O(size of the text).
  void Split(absl::string_view text, bool skip_special,
             absl::FunctionRef<void(const Part&)> on_part) const;

 private:
  class Search;

  // Returns the index of the longest pattern at the beginning of `text`; -1: none. Adds how many
  // bytes it looked at to `num_steps`.
  int32_t LongestAt(absl::string_view text, size_t* num_steps) const;

  std::vector<Pattern> patterns_;
  bool begins_[256] = {};  // bytes with which patterns begin
  // A tree of all patterns: (node, byte) -> node; the root is 0.
  absl::flat_hash_map<uint64_t, uint32_t> children_;
  std::vector<int32_t> pattern_at_;  // by node; -1: none ends there
  LongestMatches matches_;           // for texts in which many patterns nearly match
};

}  // namespace megascale::tokenizer
