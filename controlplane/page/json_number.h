// Numbers in JSON, which has no NaN and no infinity.
#pragma once

#include <cmath>

#include "nlohmann/json.hpp"

namespace megascale::page {

// Returns null for a number that is not finite.
inline nlohmann::json Number(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

}  // namespace megascale::page
