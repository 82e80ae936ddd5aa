#include "runtime/data/tokenizer/text/unicode_class.h"

#include <algorithm>

namespace megascale::tokenizer {

const UnicodeTable& UnicodeTable::Get() {
  static const UnicodeTable* const table = new UnicodeTable;
  return *table;
}

UnicodeTable::UnicodeTable() {
  for (int i = 0; i < kNumUnicodeRanges; ++i) {
    const uint32_t end = i + 1 < kNumUnicodeRanges ? kUnicodeRanges[i + 1].first : sizeof(bits_);
    std::fill(bits_ + kUnicodeRanges[i].first, bits_ + end, kUnicodeRanges[i].bits);
  }
}

}  // namespace megascale::tokenizer
