// A table from words to token ids that is filled once and then read very often. Words of up to 16
// bytes, which is most of a vocabulary, lie inside the table: a look-up touches one cache line.
// Threads: any, once it is filled.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace megascale::tokenizer {

class WordTable {
 public:
  static constexpr int32_t kAbsent = -1;

  // Makes room for `num_words`. Requires: nothing was inserted.
  void Reserve(size_t num_words);
  // Requires: id >= 0; at most the reserved number of words. A word that is there keeps its id.
  void Insert(absl::string_view word, int32_t id);

  // Returns the word's id, or kAbsent.
  int32_t Find(absl::string_view word) const {
    if (word.size() > kInlineBytes) return FindLong(word);
    if (slots_.empty()) return kAbsent;
    const Key key = KeyOf(word);
    for (size_t at = HashOf(key) & mask_;; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.id == kAbsent || slot.key == key) return slot.id;
    }
  }

 private:
  static constexpr size_t kInlineBytes = 16;

  struct Key {
    uint64_t low = 0;
    uint64_t high = 0;
    uint64_t size = 0;
    bool operator==(const Key& other) const {
      return low == other.low && high == other.high && size == other.size;
    }
  };
  struct Slot {
    Key key;
    int32_t id = kAbsent;
  };

  template <typename Number>
  static uint64_t Load(const char* data) {
    Number number;
    std::memcpy(&number, data, sizeof(number));
    return number;
  }
  // Two overlapping reads hold all bytes of a word of known size.
  static Key KeyOf(absl::string_view word) {
    const char* data = word.data();
    const size_t size = word.size();
    if (size >= 8) return {Load<uint64_t>(data), Load<uint64_t>(data + size - 8), size};
    if (size >= 4) return {Load<uint32_t>(data), Load<uint32_t>(data + size - 4), size};
    if (size == 0) return {0, 0, 0};
    return {Load<uint8_t>(data) | Load<uint8_t>(data + size / 2) << 8,
            Load<uint8_t>(data + size - 1), size};
  }
  static uint64_t HashOf(const Key& key) {
    const uint64_t mixed = (key.low ^ key.size << 56) * 0x9E3779B97F4A7C15u ^
                           (key.high + 0x165667B19E3779F9u) * 0xC2B2AE3D27D4EB4Fu;
    return (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9u >> 20;
  }
  int32_t FindLong(absl::string_view word) const;

  std::vector<Slot> slots_;  // a power of two of them, at most half of them used
  size_t mask_ = 0;
  absl::flat_hash_map<std::string, int32_t> long_words_;
};

}  // namespace megascale::tokenizer
