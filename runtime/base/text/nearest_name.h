// "Did you mean": the known name that a misspelt one is closest to. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace megascale::base {

// Insertions, deletions, substitutions and swaps of neighbours that turn one into the other.
int EditDistance(absl::string_view a, absl::string_view b);

// The member of `known` with the least edit distance to `name`, or "" where none is near: within a
// third of the longer name's length, and at least one edit is always allowed.
std::string NearestName(absl::string_view name, const std::vector<std::string>& known);

}  // namespace megascale::base
