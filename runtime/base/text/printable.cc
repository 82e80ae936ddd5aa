#include "runtime/base/text/printable.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace megascale::base {
namespace {

// Returns the code point of a complete character.
uint32_t Decode(absl::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0);
  uint32_t point = byte(0) & (0x7Fu >> character.size());
  for (size_t i = 1; i < character.size(); ++i) point = point << 6 | (byte(i) & 0x3Fu);
  return point;
}

// Returns true for control characters of both ranges, line and paragraph separators, and characters
// that reorder the text after them.
bool IsUnprintable(uint32_t point) {
  return point < 0x20 || (point >= 0x7F && point < 0xA0) || point == 0x061C ||
         (point >= 0x200E && point <= 0x200F) || (point >= 0x2028 && point <= 0x202E) ||
         (point >= 0x2066 && point <= 0x2069) || point == 0xFEFF;
}

std::string Escape(uint32_t point) {
  if (point == '\n') return "\\n";
  if (point == '\t') return "\\t";
  if (point == '\r') return "\\r";
  if (point < 0x80) return absl::StrCat("\\x", absl::Hex(point, absl::kZeroPad2));
  return absl::StrCat("\\u", absl::Hex(point, absl::kZeroPad4));
}

}  // namespace

size_t Utf8Length(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t length = first < 0x80                    ? 1
                        : first >= 0xC2 && first < 0xE0 ? 2
                        : first >= 0xE0 && first < 0xF0 ? 3
                        : first >= 0xF0 && first < 0xF5 ? 4
                                                        : 0;
  if (length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (first == 0xE0 && byte(1) < 0xA0) return 0;
  if (first == 0xED && byte(1) > 0x9F) return 0;  // surrogates
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) > 0x8F) return 0;
  return length;
}

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string Printable(absl::string_view text, size_t bytes_max) {
  std::string shown;
  size_t left = bytes_max;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const size_t taken = std::max<size_t>(length, 1);
    if (taken > left) return shown + "…";
    left -= taken;
    const absl::string_view character = text.substr(0, taken);
    if (length == 0) {
      const auto byte = static_cast<unsigned char>(character[0]);
      absl::StrAppend(&shown, "\\x", absl::Hex(byte, absl::kZeroPad2));
    } else if (const uint32_t point = Decode(character); IsUnprintable(point)) {
      shown += Escape(point);
    } else {
      absl::StrAppend(&shown, character);
    }
    text.remove_prefix(taken);
  }
  return shown;
}

}  // namespace megascale::base
