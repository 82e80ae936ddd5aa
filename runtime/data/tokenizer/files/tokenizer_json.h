// Reads and writes Hugging Face's tokenizer.json. Reads BPE models with the components of the
// supported families. Anything else is never skipped: it is refused, with its name, in one line.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/data/tokenizer/text/splitter.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace megascale::tokenizer {

// Errors: InvalidArgument - not JSON, a malformed or contradictory part, or a component that is not
// supported, each named.
// Cost: memory of at most about 25 times the text's size.
absl::StatusOr<TokenizerParts> ParseTokenizerJson(absl::string_view text);

// A byte-level BPE to write.
struct ByteLevelBpe {
  std::vector<std::string> special_tokens;  // ids 0, 1, …
  // Then the 256 bytes in the order of the byte alphabet's letters, then the result of each merge
  // that is no token yet. A merge: its left and its right part, as bytes.
  std::vector<std::pair<std::string, std::string>> merges;
  SplitPattern split = SplitPattern::kLlama3;
};

// Says whether special tokens can be written and read again. Errors: InvalidArgument - one that is
// empty, not UTF-8, given twice, or a letter that stands for a byte.
absl::Status CheckSpecialTokens(absl::Span<const std::string> tokens);

// Requires: CheckSpecialTokens of the special tokens. Returns the file, which PyPI's `tokenizers`
// reads, too.
std::string WriteTokenizerJson(const ByteLevelBpe& bpe);

}  // namespace megascale::tokenizer
