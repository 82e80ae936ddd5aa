// Learns a byte-level BPE from text: counts words, then merges the most frequent pair of neighbours
// again and again. The merges are those of PyPI's `tokenizers` for the same text, also where counts
// are equal. Determinism: they depend on the text and the options alone.
//
//   WordCounter counter(SplitPattern::kLlama3);
//   counter.Feed(bytes);  // as often as there are more
//   counter.Finish();
//   merges = TrainBpe(counter.words(), options);
//
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "runtime/data/tokenizer/text/splitter.h"
#include "runtime/data/tokenizer/text/utf8.h"

namespace megascale::tokenizer {

// Counts the pieces of a text that arrives in blocks. Cost: memory of the distinct pieces and of
// one block; a text without a space between two letters is held up to 64 MiB.
class WordCounter {
 public:
  using Words = absl::flat_hash_map<std::string, int64_t>;

  explicit WordCounter(SplitPattern pattern) : pattern_(pattern) {}
  // Takes the next bytes of the text. Invalid UTF-8 counts as U+FFFD.
  void Feed(absl::string_view bytes);
  // Ends the text; another one may follow.
  void Finish();
  const Words& words() const { return words_; }

 private:
  void Count(absl::string_view text);

  const SplitPattern pattern_;
  Utf8Repair repair_;
  std::string held_;     // may belong to a piece that is not complete
  size_t searched_ = 0;  // its first bytes, within which is no place to cut
  Words words_;
};

struct BpeTrainOptions {
  int64_t num_tokens_max = 0;  // tokens that merges make, beyond the 256 bytes
  int64_t min_frequency = 1;   // pairs that are rarer are not merged
  // Called now and then with the tokens made so far and num_tokens_max.
  std::function<void(int64_t done, int64_t all)> on_progress;
};

// Returns the merges in order, as bytes: fewer tokens than asked for if no pair is left.
// Cost: about 30 bytes of memory for each byte of the distinct words; the time of a merge grows
// with the number of words that contain its pair.
std::vector<std::pair<std::string, std::string>> TrainBpe(const WordCounter::Words& words,
                                                          const BpeTrainOptions& options);

}  // namespace megascale::tokenizer
