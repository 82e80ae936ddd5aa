// "Did you mean": finds the known name that is closest to a misspelt one. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace megascale::base {

// Returns the number of insertions, deletions, substitutions and swaps of neighbours between a and
// b.
int EditDistance(absl::string_view a, absl::string_view b);

// Returns the member of `known` with the smallest edit distance to `name`; "" if that exceeds both
// one edit and a third of the longer name's length.
std::string NearestName(absl::string_view name, const std::vector<std::string>& known);

}  // namespace megascale::base
