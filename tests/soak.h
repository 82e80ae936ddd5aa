// `./dev soak` runs some tests with far more seeds, layouts or time than `./dev test`. Each test
// describes its long form where it calls IsSoak.
#pragma once

#include <cstdlib>

namespace megascale {

// True under `./dev soak`, which sets MEGASCALE_SOAK=1.
inline bool IsSoak() {
  const char* value = std::getenv("MEGASCALE_SOAK");
  return value != nullptr && value[0] == '1';
}

}  // namespace megascale
