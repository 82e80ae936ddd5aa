#include "runtime/data/tokenizer/text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/data/tokenizer/text/utf8.h"

namespace megascale::tokenizer {
namespace {

struct Marks {
  uint32_t first;
  uint32_t last;
};

// Combining marks that are younger than the reference's tables: there they are characters of their
// own, before which and after which marks keep their order. text_test compares every code point.
constexpr Marks kYoungMarks[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
};

bool IsYoungMark(uint32_t code_point) {
  const auto* after =
      std::upper_bound(std::begin(kYoungMarks), std::end(kYoungMarks), code_point,
                       [](uint32_t value, const Marks& marks) { return value < marks.first; });
  return after != std::begin(kYoungMarks) && code_point <= (after - 1)->last;
}

void AppendNfc(absl::string_view text, std::string* out) {
  if (text.empty()) return;
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &composed,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  MEGASCALE_CHECK_MSG(size >= 0, utf8proc_errmsg(size));
  out->append(reinterpret_cast<const char*>(composed), static_cast<size_t>(size));
  std::free(composed);
}

}  // namespace

std::string ToNfc(absl::string_view text) {
  // From 0xCC on begin the characters from U+0300; those before are composed already.
  const bool unchanged = std::all_of(text.begin(), text.end(),
                                     [](char c) { return static_cast<unsigned char>(c) < 0xCC; });
  if (unchanged) return std::string(text);
  std::string result;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint read = ReadCodePoint(text.data() + at);
    const size_t next = at + read.length;
    if (IsYoungMark(read.value)) {
      AppendNfc(text.substr(begin, at - begin), &result);
      absl::StrAppend(&result, text.substr(at, read.length));
      begin = next;
    }
    at = next;
  }
  AppendNfc(text.substr(begin), &result);
  return result;
}

}  // namespace megascale::tokenizer
