#include "runtime/data/tokenizer/text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
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

int CombiningClass(int32_t code_point) {
  return ::utf8proc_get_property(code_point)->combining_class;
}

// Sorts a run of marks by their combining class, and keeps the order within a class. A long run is
// sorted by counting, so that its cost is linear. Returns the number of moves.
int64_t SortMarks(absl::Span<int32_t> marks) {
  constexpr size_t kShort = 32;
  constexpr size_t kNumClasses = 256;
  int64_t num_moves = static_cast<int64_t>(marks.size());
  if (marks.size() <= kShort) {
    for (size_t i = 1; i < marks.size(); ++i) {
      for (size_t at = i; at > 0 && CombiningClass(marks[at - 1]) > CombiningClass(marks[at]);
           --at, ++num_moves) {
        std::swap(marks[at - 1], marks[at]);
      }
    }
    return num_moves;
  }
  std::array<size_t, kNumClasses + 1> begin = {};
  for (const int32_t mark : marks) ++begin[static_cast<size_t>(CombiningClass(mark)) + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<int32_t> sorted(marks.size());
  for (const int32_t mark : marks) {
    sorted[begin[static_cast<size_t>(CombiningClass(mark))]++] = mark;
  }
  std::copy(sorted.begin(), sorted.end(), marks.begin());
  return num_moves;
}

// Puts the marks after each character into their canonical order.
int64_t OrderMarks(std::vector<int32_t>* code_points) {
  int64_t num_moves = 0;
  for (size_t at = 0; at < code_points->size();) {
    size_t end = at;
    while (end < code_points->size() && CombiningClass((*code_points)[end]) > 0) ++end;
    if (end - at > 1) num_moves += SortMarks(absl::MakeSpan(*code_points).subspan(at, end - at));
    at = std::max(end, at + 1);
  }
  return num_moves;
}

// The library's own function sorts marks by exchanging neighbours, which takes time in the square
// of their number; so only its tables are used to decompose, and its composition.
int64_t AppendNfc(absl::string_view text, std::string* out) {
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  constexpr int kPartsMax = 18;  // of one code point
  std::vector<int32_t> code_points;
  code_points.reserve(text.size() + 1);
  std::array<int32_t, kPartsMax> parts;
  for (size_t at = 0; at < text.size();) {
    const CodePoint read = ReadCodePoint(text.data() + at);
    at += read.length;
    int boundclass = 0;
    const utf8proc_ssize_t count = ::utf8proc_decompose_char(
        static_cast<int32_t>(read.value), parts.data(), kPartsMax, kOptions, &boundclass);
    MEGASCALE_CHECK_MSG(count >= 0 && count <= kPartsMax, utf8proc_errmsg(count));
    code_points.insert(code_points.end(), parts.begin(), parts.begin() + count);
  }
  const int64_t num_moves = OrderMarks(&code_points);
  const utf8proc_ssize_t size = ::utf8proc_normalize_utf32(
      code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), kOptions);
  MEGASCALE_CHECK_MSG(size >= 0, utf8proc_errmsg(size));
  code_points.resize(static_cast<size_t>(size));
  for (const int32_t code_point : code_points) {
    AppendCodePoint(static_cast<uint32_t>(code_point), out);
  }
  return num_moves;
}

}  // namespace

std::string ToNfc(absl::string_view text, int64_t* num_moves) {
  // From 0xCC on begin the characters from U+0300; those before are composed already.
  const bool unchanged = std::all_of(text.begin(), text.end(),
                                     [](char c) { return static_cast<unsigned char>(c) < 0xCC; });
  if (unchanged) return std::string(text);
  std::string result;
  int64_t moves = 0;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint read = ReadCodePoint(text.data() + at);
    const size_t next = at + read.length;
    if (IsYoungMark(read.value)) {
      moves += AppendNfc(text.substr(begin, at - begin), &result);
      absl::StrAppend(&result, text.substr(at, read.length));
      begin = next;
    }
    at = next;
  }
  moves += AppendNfc(text.substr(begin), &result);
  if (num_moves != nullptr) *num_moves = moves;
  return result;
}

}  // namespace megascale::tokenizer
