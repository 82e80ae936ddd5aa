// Finds where the documents of a sample begin, by the sample's end tokens.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace megascale::data {

// Sets begins[i] to the position of the first token of the document that token i belongs to. An end
// token belongs to the document that it ends; the sample's first document begins at 0, even if it
// begins earlier in the text. Requires: `tokens` has at least the size of `begins`.
void FindDocumentBegins(absl::Span<const int32_t> tokens, int32_t end_token,
                        absl::Span<int32_t> begins);

}  // namespace megascale::data
