#include "runtime/device/check/pattern.h"

#include <cstring>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"

namespace megascale::device::check {
namespace {

// One step of SplitMix64: all bits change from word to word.
uint64_t WordAt(uint64_t seed, bool inverted, uint64_t index) {
  uint64_t word = seed * 0xD1342543DE82EF95 + (index + 1) * 0x9E3779B97F4A7C15;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
  word ^= word >> 31;
  return inverted ? ~word : word;
}

}  // namespace

void FillPattern(uint64_t seed, bool inverted, void* data, size_t size_bytes) {
  MEGASCALE_CHECK(size_bytes % sizeof(uint64_t) == 0);
  auto* const words = static_cast<uint64_t*>(data);
  for (uint64_t i = 0; i < size_bytes / sizeof(uint64_t); ++i) words[i] = WordAt(seed, inverted, i);
}

std::string FindWrongBytes(uint64_t seed, bool inverted, const void* data, size_t size_bytes,
                           size_t offset) {
  MEGASCALE_CHECK(size_bytes % sizeof(uint64_t) == 0);
  const auto* const words = static_cast<const uint64_t*>(data);
  size_t num_wrong = 0;
  std::string first;
  for (uint64_t i = 0; i < size_bytes / sizeof(uint64_t); ++i) {
    const uint64_t expected = WordAt(seed, inverted, i);
    const uint64_t wrong = words[i] ^ expected;
    if (wrong == 0) continue;
    for (unsigned byte = 0; byte < sizeof(uint64_t); ++byte) {
      if ((wrong >> (8 * byte) & 0xff) == 0) continue;
      if (++num_wrong > 1) continue;
      first = absl::StrFormat("%d: 0x%02x in place of 0x%02x", offset + 8 * i + byte,
                              words[i] >> (8 * byte) & 0xff, expected >> (8 * byte) & 0xff);
    }
  }
  if (num_wrong == 0) return "";
  return absl::StrFormat("%d wrong byte%s, the first at byte %s", num_wrong,
                         num_wrong == 1 ? "" : "s", first);
}

}  // namespace megascale::device::check
