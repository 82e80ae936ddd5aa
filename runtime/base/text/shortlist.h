// A list of unknown length, for one line that people read. Thread-safe: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace megascale::base {

// "n0, n1, n2"; of more than `max` items the first, and how many follow: "n0, n1 and 1534 more".
std::string Shortlist(const std::vector<std::string>& items, size_t max = 8);

}  // namespace megascale::base
