#include "runtime/data/batches/document_begins.h"

#include <cstddef>

#include "runtime/base/check.h"

namespace megascale::data {

void FindDocumentBegins(absl::Span<const int32_t> tokens, int32_t end_token,
                        absl::Span<int32_t> begins) {
  MEGASCALE_CHECK(tokens.size() >= begins.size());
  int32_t begin = 0;
  for (size_t i = 0; i < begins.size(); ++i) {
    begins[i] = begin;
    if (tokens[i] == end_token) begin = static_cast<int32_t>(i) + 1;
  }
}

}  // namespace megascale::data
