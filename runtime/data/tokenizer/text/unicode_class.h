// The class of a code point in the patterns by which tokenizers split text: \p{L}, \p{N}, \s, or
// none of these. They never overlap. Beside it, the case of a letter, and marks. Threads: any.
#pragma once

#include <cstdint>

#include "runtime/data/tokenizer/text/unicode_ranges.h"

namespace megascale::tokenizer {

// The UnicodeBits of every code point. Cost: 1.1 MiB, made at the first use in about 1 ms.
class UnicodeTable {
 public:
  static const UnicodeTable& Get();

  // Requires: code_point < 0x110000.
  uint8_t BitsOf(uint32_t code_point) const { return bits_[code_point]; }
  bool IsLetter(uint32_t code_point) const { return (bits_[code_point] & kLetterBit) != 0; }
  bool IsNumber(uint32_t code_point) const { return (bits_[code_point] & kNumberBit) != 0; }
  bool IsSpace(uint32_t code_point) const { return (bits_[code_point] & kSpaceBit) != 0; }
  // \w: an added token next to such a character is part of a longer word.
  bool IsWord(uint32_t code_point) const { return (bits_[code_point] & kWordBit) != 0; }

 private:
  UnicodeTable();
  uint8_t bits_[0x110000];
};

}  // namespace megascale::tokenizer
