// The Unicode classes as the reference's engines know them, as runs of code points. The table is
// generated; see the source. Use unicode_class.h, which makes it fast to look up.
#pragma once

#include <cstdint>

namespace megascale::tokenizer {

enum UnicodeBits : uint8_t {
  kLetterBit = 1,
  kNumberBit = 2,
  kSpaceBit = 4,
  kWordBit = 8,
  kUpperBit = 16,  // \p{Lu} and \p{Lt}
  kLowerBit = 32,  // \p{Ll}
  kMarkBit = 64,   // \p{M}
  // The pre-tokenizer Digits knows a few code points as numbers that \p{N} does not have, or the
  // other way round.
  kOtherDigitBit = 128,
};

// From `first` to the next entry's `first`, or to U+10FFFF, all code points have these bits.
struct UnicodeRange {
  uint32_t first;
  uint8_t bits;
};

extern const UnicodeRange kUnicodeRanges[];
extern const int kNumUnicodeRanges;

struct CodePoints {
  uint32_t first;
  uint32_t last;
};

// \p{P} of the engine that runs the expressions, in order and apart from each other. All bits above
// are taken, and only few families need it.
extern const CodePoints kPunctuation[];
extern const int kNumPunctuation;

}  // namespace megascale::tokenizer
