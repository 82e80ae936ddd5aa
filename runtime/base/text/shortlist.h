// Shortens a list of unknown length to one line that people read. Threads: any; pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace megascale::base {

// Returns "n0, n1, n2"; with more than `max` items the first ones and a count: "n0, n1 and 1534
// more".
std::string Shortlist(const std::vector<std::string>& items, size_t max = 8);

}  // namespace megascale::base
