// What the parts of a machine's test have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"

namespace megascale::machine {

// The result of one part.
struct PartResult {
  std::string failure;          // one line; empty: passed
  std::string note;             // why a piece was left out; empty: nothing was
  double bytes_per_second = 0;  // 0: the part has no rate
};

// Returns bytes per second.
double RateOf(double bytes, absl::Duration taken);

// Changes data behind a part's back, so that a test sees it found. Empty: nothing does.
using Tamper = std::function<void(void* data, size_t size_bytes)>;

// Fills `size_bytes` of `data` with a pattern in which every word depends on `seed` and its place.
void FillPattern(uint64_t seed, void* data, size_t size_bytes);

// Compares with the pattern. Returns "3 bytes of 64 MiB read back wrong, the first at byte 4096:
// 0x10 in place of 0x11"; empty: all are right. `place`: of `data` in the pattern, a multiple of 8.
std::string FindWrongBytes(uint64_t seed, const void* data, size_t size_bytes);

}  // namespace megascale::machine
