// Byte-pair encoding: a piece of text begins as symbols, one for each byte or character, and the
// pair of neighbours with the lowest rank is merged until no pair of the model is left.
//
//   BpeModel model({.symbols = …, .merges = …, .start = BpeStart::kBytes});
//   model.Encode(" word", &ids);
//
// Where a piece is a whole text, it is cut between characters that no merge joins: "word" and ","
// of "word," are then found by a look-up each. A word that is a token of its own is found by one
// look-up, with the same result: the constructor finds out which tokens are reached by the merges
// of their own text. Threads: immutable; any. Source: Sennrich, Haddow, Birch, "Neural Machine
// Translation of Rare Words with Subword Units".
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "runtime/data/tokenizer/bpe/merge_table.h"
#include "runtime/data/tokenizer/bpe/word_table.h"

namespace megascale::tokenizer {

enum class BpeStart { kBytes, kCharacters };

struct BpeSpec {
  // Every token as it stands in text, with its id (>= 0).
  std::vector<std::pair<std::string, int32_t>> symbols;
  std::vector<BpeMerge> merges;
  std::vector<uint32_t> merge_ranks;  // of each merge; empty: its index
  BpeStart start = BpeStart::kBytes;
  // What stands for a byte or character that is no token. Without it such a character is left out,
  // as in the reference.
  std::optional<int32_t> unknown;
  bool fuse_unknown = false;  // several in a row become one
  // Ids of the tokens that stand for single bytes, used for a character that is no token if each
  // of its bytes has one. -1: that byte has none. Empty: no such fallback.
  std::vector<int32_t> byte_fallback;
  // A piece that is a token gets its id even if no merges lead to it.
  bool ignore_merges = false;
  // A character before which words begin: "▁" in models whose pieces are whole texts. Pieces are
  // cut there if no merge can reach over the cut, which does not change the result. "": none.
  std::string word_begin;
};

class BpeModel {
 public:
  // Cost: encodes each token once.
  explicit BpeModel(const BpeSpec& spec);

  // Appends the ids of one piece. Requires: for kCharacters, `piece` is valid UTF-8.
  // Cost: O(n log n) time and O(n) memory for n bytes.
  void Encode(absl::string_view piece, std::vector<int32_t>* ids) const;

  // True if pieces are cut at word_begin.
  bool cuts_words() const { return cuts_words_; }

 private:
  void EncodeWord(absl::string_view word, std::vector<int32_t>* ids) const;
  // Requires: a part of one byte is below 128 and known.
  void EncodePart(absl::string_view part, std::vector<int32_t>* ids) const;
  void Merge(absl::string_view word, std::vector<int32_t>* ids) const;
  void AppendStart(absl::string_view word, std::vector<int32_t>* symbols) const;
  void AppendCharacters(absl::string_view word, std::vector<int32_t>* symbols) const;
  bool AppendFallback(absl::string_view character, std::vector<int32_t>* symbols) const;
  bool CanCutWords(const BpeSpec& spec) const;
  bool EveryByteFallsBack() const;
  void FindCuts(const BpeSpec& spec);
  void FillWords(const BpeSpec& spec);

  MergeTable merges_;
  BpeStart start_;
  std::optional<int32_t> unknown_;
  bool fuse_unknown_;
  std::vector<int32_t> byte_fallback_;
  bool ignore_merges_;
  std::string word_begin_;
  bool cuts_words_ = false;
  bool every_byte_known_ = false;
  // Tokens of single bytes. With kCharacters only of bytes below 128; if all 256 bytes have a
  // fallback, a byte that is no token has its fallback here. -1: no token.
  std::array<int32_t, 256> bytes_;
  // Whether a text may be cut between two bytes, both below 128.
  std::array<std::bitset<128>, 128> cuts_;
  absl::flat_hash_map<uint32_t, int32_t> characters_;  // by code point
  WordTable words_;  // tokens that their own merges reach, and with ignore_merges all tokens
};

}  // namespace megascale::tokenizer
