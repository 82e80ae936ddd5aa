// Bytes that a test writes and later recognizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace megascale::device::check {

// Fills `size_bytes` (a multiple of 8) of `data` with a pattern in which every word depends on
// `seed` and its place; with `inverted`, every bit is inverted.
void FillPattern(uint64_t seed, bool inverted, void* data, size_t size_bytes);

// Compares with that pattern. Returns "3 wrong bytes, the first at byte 4096: 0x10 in place of
// 0x11"; empty: all are right. Places count from `offset`.
std::string FindWrongBytes(uint64_t seed, bool inverted, const void* data, size_t size_bytes,
                           size_t offset);

}  // namespace megascale::device::check
