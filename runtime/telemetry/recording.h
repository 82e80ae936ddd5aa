// Whether this process records what diagnosis reads: spans, exchanges, and samples of the machine.
// It always does, unless MEGASCALE_RECORDING=off is in its environment, for benchmarks that measure
// what recording costs (tests/bench/studies/recording.py). An agent's processes inherit it.
#pragma once

#include <cstdlib>
#include <string_view>

namespace megascale::telemetry {

inline bool IsRecording() {
  const char* const value = std::getenv("MEGASCALE_RECORDING");
  return value == nullptr || std::string_view(value) != "off";
}

}  // namespace megascale::telemetry
