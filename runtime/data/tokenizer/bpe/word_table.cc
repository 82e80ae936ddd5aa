#include "runtime/data/tokenizer/bpe/word_table.h"

#include "runtime/base/check.h"

namespace megascale::tokenizer {

void WordTable::Reserve(size_t num_words) {
  MEGASCALE_CHECK(slots_.empty());
  size_t size = 16;
  while (size < 2 * num_words) size *= 2;
  slots_.resize(size);
  mask_ = size - 1;
}

void WordTable::Insert(absl::string_view word, int32_t id) {
  MEGASCALE_CHECK(id >= 0 && !slots_.empty());
  if (word.size() > kInlineBytes) {
    long_words_.try_emplace(std::string(word), id);
    return;
  }
  const Key key = KeyOf(word);
  size_t at = HashOf(key) & mask_;
  while (slots_[at].id != kAbsent && !(slots_[at].key == key)) at = (at + 1) & mask_;
  if (slots_[at].id == kAbsent) slots_[at] = {key, id};
}

int32_t WordTable::FindLong(absl::string_view word) const {
  const auto found = long_words_.find(word);
  return found == long_words_.end() ? kAbsent : found->second;
}

}  // namespace megascale::tokenizer
