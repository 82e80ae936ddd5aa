// Numbers of things in sentences.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace megascale::base {

// Returns "1 job", "3 jobs", "0 jobs" for a `what` of "job".
std::string Counted(int64_t count, absl::string_view what);

}  // namespace megascale::base
