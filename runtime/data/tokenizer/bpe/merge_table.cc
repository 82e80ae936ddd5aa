#include "runtime/data/tokenizer/bpe/merge_table.h"

namespace megascale::tokenizer {

MergeTable::MergeTable(absl::Span<const BpeMerge> merges, absl::Span<const uint32_t> ranks) {
  size_t size = 16;
  while (size < 2 * merges.size()) size *= 2;
  slots_.resize(size);
  mask_ = size - 1;
  for (uint32_t i = 0; i < merges.size(); ++i) {
    const BpeMerge& merge = merges[i];
    const uint64_t key = KeyOf(merge.left, merge.right);
    size_t at = HashOf(key) & mask_;
    while (slots_[at].key != key && slots_[at].key != kEmpty) at = (at + 1) & mask_;
    slots_[at] = {key, {ranks.empty() ? i : ranks[i], merge.result}};
  }
}

}  // namespace megascale::tokenizer
