#include "runtime/machine/part.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace megascale::machine {
namespace {

// One step of SplitMix64: all bits change from word to word.
uint64_t WordAt(uint64_t seed, uint64_t index) {
  uint64_t word = seed + (index + 1) * 0x9E3779B97F4A7C15;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
  return word ^ (word >> 31);
}

std::string SizeText(size_t size_bytes) {
  constexpr size_t kMiB = size_t{1} << 20;
  return size_bytes % kMiB == 0 ? absl::StrCat(size_bytes / kMiB, " MiB")
                                : absl::StrCat(size_bytes, " bytes");
}

}  // namespace

double RateOf(double bytes, absl::Duration taken) {
  return bytes / std::max(1e-9, absl::ToDoubleSeconds(taken));
}

void FillPattern(uint64_t seed, void* data, size_t size_bytes) {
  auto* bytes = static_cast<unsigned char*>(data);
  for (size_t offset = 0; offset < size_bytes; offset += sizeof(uint64_t)) {
    const uint64_t word = WordAt(seed, offset / sizeof(uint64_t));
    std::memcpy(bytes + offset, &word, std::min(sizeof(word), size_bytes - offset));
  }
}

std::string FindWrongBytes(uint64_t seed, const void* data, size_t size_bytes) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  size_t num_wrong = 0;
  std::string first;
  for (size_t offset = 0; offset < size_bytes; offset += sizeof(uint64_t)) {
    const uint64_t word = WordAt(seed, offset / sizeof(uint64_t));
    const size_t count = std::min(sizeof(word), size_bytes - offset);
    if (std::memcmp(bytes + offset, &word, count) == 0) continue;
    for (size_t i = 0; i < count; ++i) {
      const auto expected = static_cast<unsigned char>(word >> (8 * i));
      if (bytes[offset + i] == expected) continue;
      if (++num_wrong == 1) {
        first = absl::StrFormat("%d: 0x%02x in place of 0x%02x", offset + i, bytes[offset + i],
                                expected);
      }
    }
  }
  if (num_wrong == 0) return "";
  return absl::StrCat(num_wrong, num_wrong == 1 ? " byte of " : " bytes of ", SizeText(size_bytes),
                      " read back wrong, the first at byte ", first);
}

}  // namespace megascale::machine
