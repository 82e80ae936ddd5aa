// Finds the longest pattern at every place of a text in one pass, whatever the patterns are. The
// text is read from its end by an automaton of the reversed patterns: a pattern that begins at a
// place is one that ends there for the automaton, and of those the longest is known by its state.
// Threads: immutable; any. Source: Aho, Corasick, "Efficient string matching", 1975.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace megascale::tokenizer {

class LongestMatches {
 public:
  // `patterns`: none is empty; of equal ones the first one counts.
  explicit LongestMatches(absl::Span<const std::string> patterns);

  struct Match {
    size_t begin;
    int32_t pattern;  // its index
  };
  // Returns the longest pattern of each place where one begins, the last place first.
  // Cost: O(size of the text) time and memory.
  std::vector<Match> Find(absl::string_view text) const;

 private:
  struct Node {
    uint32_t parent = 0;
    uint32_t depth = 0;
    uint32_t shorter = 0;  // of the longest proper suffix that is a node
    int32_t longest = -1;  // the longest pattern that ends here; -1: none
    char byte = 0;         // on the way from the parent
  };

  uint32_t Next(uint32_t node, char byte) const;

  std::vector<Node> nodes_;                           // the root is 0
  absl::flat_hash_map<uint64_t, uint32_t> children_;  // (node, byte) -> node
};

}  // namespace megascale::tokenizer
