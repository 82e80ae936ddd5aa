// Which fields of a config.json matter to this program. docs/hugging-face.md has the same table.
// Private to this folder. Threads: plain functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/hugging_face/config/config.h"

namespace megascale::hugging_face {

// Returns the fields that the model depends on: they are read, and a value that this program has no
// option for is refused.
absl::Span<const absl::string_view> FieldsOfEveryFamily();
absl::Span<const absl::string_view> FieldsOf(Architecture architecture);

// Returns the fields that have no effect on logits, such as settings of sampling, of other tasks
// and of the Python library itself.
absl::Span<const absl::string_view> HarmlessFields();

// True if the field is in one of these lists.
bool IsKnownField(Architecture architecture, absl::string_view name);

}  // namespace megascale::hugging_face
