// The one source of randomness of a simulation: the same seed gives the same numbers on every
// machine. Source: SplitMix64, Steele et al., 2014.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace megascale::sim {

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // Returns true with this probability.
  bool Chance(double probability) {
    return static_cast<double>(Next() >> 11) * 0x1.0p-53 < probability;
  }
  // Returns a number from `low` to `high`, both included.
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
  }
  // Returns a duration from `low` to `high`, in whole microseconds.
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    return absl::Microseconds(
        Between(absl::ToInt64Microseconds(low), absl::ToInt64Microseconds(high)));
  }
  // Returns an index below `count`. Requires: count > 0.
  size_t Index(size_t count) { return static_cast<size_t>(Next() % count); }

 private:
  uint64_t state_;
};

}  // namespace megascale::sim
