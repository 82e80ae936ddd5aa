// Looks at JSON from outside before it is parsed: a parser that calls itself for each level, or
// keeps memory for it, must not get a text of brackets alone. Threads: pure function.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace megascale::base {

// Errors: InvalidArgument - arrays and objects are nested more than 32 levels deep: "is nested …",
// before which the caller puts the file's name. Text that is not JSON may pass.
absl::Status CheckJsonNesting(absl::string_view text);

}  // namespace megascale::base
