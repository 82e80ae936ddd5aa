// Checks JSON of unknown origin before it is parsed, because a text of nothing but brackets would
// exhaust a parser that recurses, or keeps memory, for each level. Threads: pure function.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace megascale::base {

// Errors: InvalidArgument - arrays and objects are nested more than 32 levels deep: "is nested …",
// before which the caller puts the file's name. Text that is not JSON may pass.
absl::Status CheckJsonNesting(absl::string_view text);

}  // namespace megascale::base
