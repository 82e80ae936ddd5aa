// UTF-8 for tokenizers: fast reading of valid text, and the repair of text that is not valid.
// A maximal invalid sequence becomes one U+FFFD, as in the Unicode standard and in Python's
// errors="replace". Threads: pure functions; one Utf8Repair belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace megascale::tokenizer {

inline constexpr absl::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Returns the length in bytes of the character that begins with `byte` in valid UTF-8.
inline size_t CharacterLength(char byte) {
  const auto lead = static_cast<unsigned char>(byte);
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

struct CodePoint {
  uint32_t value;
  uint32_t length;  // in bytes
};

// Returns the character at the beginning of `data`. Requires: valid UTF-8, at least one character.
inline CodePoint ReadCodePoint(const char* data) {
  const auto byte = [data](int i) { return uint32_t{static_cast<unsigned char>(data[i])}; };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

// Returns the last character of `text`. Requires: as ReadCodePoint.
CodePoint ReadLastCodePoint(absl::string_view text);

void AppendCodePoint(uint32_t code_point, std::string* out);

// Returns how many bytes at the beginning of `text` are valid UTF-8. Cost: about 1 ns for 8 bytes
// of ASCII.
size_t ValidPrefix(absl::string_view text);

// Repairs UTF-8 that arrives in pieces. Bytes that may be the beginning of a character are held
// back until its end arrives, so that each piece of the output is valid UTF-8, even if those of the
// input are not.
class Utf8Repair {
 public:
  void Push(absl::string_view bytes, std::string* out);
  // Ends the text: an unfinished character becomes U+FFFD.
  void Finish(std::string* out);

 private:
  std::string held_;  // at most 3 bytes
};

// Returns the whole text repaired.
std::string RepairUtf8(absl::string_view text);

}  // namespace megascale::tokenizer
