#include "cli/diagnosis/first_error.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "runtime/base/text/printable.h"

namespace megascale::cli {
namespace {

constexpr size_t kLineBytesMax = 300;
constexpr size_t kLevelAt = 25;  // "2026-01-31T12:00:00.123Z I driver: text"

// Returns the level of a line of our log; 0: it is none.
char LevelOf(absl::string_view line) {
  const bool is_ours = line.size() > kLevelAt + 1 && line[10] == 'T' && line[23] == 'Z' &&
                       line[24] == ' ' && line[kLevelAt + 1] == ' ' &&
                       std::isdigit(static_cast<unsigned char>(line[0])) != 0;
  return is_ours ? line[kLevelAt] : '\0';
}

bool IsError(absl::string_view line) {
  if (const char level = LevelOf(line); level != '\0') return level == 'E';
  constexpr std::array<absl::string_view, 6> kWords = {"error", "fatal",  "assert",
                                                       "abort", "signal", "terminate called"};
  const std::string lower = absl::AsciiStrToLower(line.substr(0, 4096));
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](absl::string_view word) { return absl::StrContains(lower, word); });
}

}  // namespace

void FirstError::Add(absl::string_view lines) {
  for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    if (!line_.empty()) return;
    if (IsError(line)) line_ = base::Printable(line, kLineBytesMax);
  }
}

}  // namespace megascale::cli
