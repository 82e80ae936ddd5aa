// The merges of a BPE model: which pairs of tokens become one token, and which pair goes first.
// Threads: any, once it is filled.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace megascale::tokenizer {

struct BpeMerge {
  int32_t left;
  int32_t right;
  int32_t result;
};

class MergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;

  struct Found {
    uint32_t rank = kNoRank;  // the lowest goes first
    int32_t result = -1;
  };

  // If two merges have the same pair, the later one counts, as in the reference. `ranks`: the rank
  // of each merge; where ranks are equal, the leftmost pair goes first. Empty: a merge's rank is
  // its index. Requires: ids >= 0; fewer than 2^31 merges.
  explicit MergeTable(absl::Span<const BpeMerge> merges, absl::Span<const uint32_t> ranks = {});

  Found Find(int32_t left, int32_t right) const {
    const uint64_t key = KeyOf(left, right);
    for (size_t at = HashOf(key) & mask_;; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.key == key) return slot.found;
      if (slot.key == kEmpty) return {};
    }
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Slot {
    uint64_t key = kEmpty;
    Found found;
  };

  static uint64_t KeyOf(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  static uint64_t HashOf(uint64_t key) {
    key *= 0x9E3779B97F4A7C15u;
    return (key ^ key >> 32) * 0xD6E8FEB86659FD93u >> 24;
  }

  std::vector<Slot> slots_;  // a power of two of them, at most half of them used
  size_t mask_;
};

}  // namespace megascale::tokenizer
