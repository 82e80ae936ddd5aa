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
  std::string note;             // why something was left out; empty: nothing was left out
  double bytes_per_second = 0;  // 0: the part has no rate
};

// Returns bytes per second.
double RateOf(double bytes, absl::Duration taken);

// For tests: corrupts data, so that a test sees the part detect it. Empty: nothing is changed.
using Tamper = std::function<void(void* data, size_t size_bytes)>;

// Fills `size_bytes` of `data` with a pattern in which every word depends on `seed` and its place.
void FillPattern(uint64_t seed, void* data, size_t size_bytes);

// Compares with the pattern. Returns "3 bytes of 64 MiB read back wrong, the first at byte 4096:
// 0x10 in place of 0x11"; empty: all bytes are right.
std::string FindWrongBytes(uint64_t seed, const void* data, size_t size_bytes);

}  // namespace megascale::machine
