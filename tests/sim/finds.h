// Whether a checker finds what a test has broken on purpose.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "tests/sim/simulation.h"

namespace megascale::sim {

// True when one of the first seeds violates `invariant`. `tamper` makes new hooks for every seed.
inline bool Finds(const std::string& invariant, const std::function<Tampering()>& tamper,
                  bool calm = false, uint64_t num_seeds = 40) {
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
    const Outcome outcome = Simulate({.seed = seed,
                                      .calm = calm,
                                      .tampering = tamper(),
                                      .keep_going = true,
                                      .stop_at = invariant});
    for (const Violation& violation : outcome.violations) {
      if (violation.invariant == invariant) return true;
    }
  }
  return false;
}

inline bool Finds(const std::string& invariant, std::function<void(agent::ActualState*)> report,
                  bool calm = false) {
  return Finds(
      invariant, [report] { return Tampering{.report = report}; }, calm);
}

}  // namespace megascale::sim
