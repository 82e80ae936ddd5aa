// The Unicode normalisation form NFC. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace megascale::tokenizer {

// Returns `text` in NFC. Requires: `text` is valid UTF-8. `num_moves`, if not null, receives how
// often marks were moved to order them, which tests bound. Cost: linear. Text without characters
// from U+0300 on is copied; other text takes four bytes of memory for each of its bytes during the
// call.
std::string ToNfc(absl::string_view text, int64_t* num_moves = nullptr);

}  // namespace megascale::tokenizer
