// Whether this process records the input of diagnosis: spans, exchanges, and samples of the
// machine. It does, unless MEGASCALE_RECORDING=off is in its environment. That is for benchmarks
// that measure the cost of recording (tests/bench/studies/recording.py). An agent's processes
// inherit the variable.
#pragma once

#include <cstdlib>
#include <string_view>

namespace megascale::telemetry {

inline bool IsRecording() {
  const char* const value = std::getenv("MEGASCALE_RECORDING");
  return value == nullptr || std::string_view(value) != "off";
}

}  // namespace megascale::telemetry
