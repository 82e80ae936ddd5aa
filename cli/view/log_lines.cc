#include "cli/view/log_lines.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace megascale::cli {
namespace {

// Returns the "2026-11-22T22:21:51.169Z" at the beginning of a line; "": the line has no time. Such
// times are in order as text.
absl::string_view TimeOf(absl::string_view line) {
  constexpr absl::string_view kForm = "0000-00-00T00:00:00.000Z ";
  if (line.size() < kForm.size()) return "";
  for (size_t i = 0; i < kForm.size(); ++i) {
    const bool fits = kForm[i] == '0' ? absl::ascii_isdigit(static_cast<unsigned char>(line[i]))
                                      : line[i] == kForm[i];
    if (!fits) return "";
  }
  return line.substr(0, kForm.size() - 1);
}

}  // namespace

void LogLines::Add(const control::v1::StreamLogsResponse& piece) {
  const std::string who = piece.rank() < 0 ? absl::StrCat("host ", piece.node_id())
                                           : absl::StrCat("rank ", piece.rank());
  std::string& newest = newest_[{piece.rank(), piece.node_id()}];
  for (const absl::string_view text :
       absl::StrSplit(absl::string_view(piece.data()), '\n', absl::SkipEmpty())) {
    newest = std::max(newest, std::string(TimeOf(text)));
    lines_.push_back({newest, absl::StrCat("[", who, "] ", text, "\n")});
    size_bytes_ += lines_.back().text.size();
  }
}

std::string LogLines::Take() {
  std::stable_sort(lines_.begin(), lines_.end(),
                   [](const Line& a, const Line& b) { return a.time < b.time; });
  std::string all;
  all.reserve(size_bytes_);
  for (const Line& line : lines_) all += line.text;
  lines_.clear();
  size_bytes_ = 0;
  return all;
}

}  // namespace megascale::cli
