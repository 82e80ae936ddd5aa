// The Unicode normalisation form NFC. Threads: pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace megascale::tokenizer {

// Returns `text` in NFC. Requires: `text` is valid UTF-8. Cost: text without characters from U+0300
// on is copied; other text takes four bytes of memory for each of its code points during the call.
std::string ToNfc(absl::string_view text);

}  // namespace megascale::tokenizer
