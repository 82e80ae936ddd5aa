// The terminal of the output, and the format of numbers and text for people.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace megascale::cli {

struct Terminal {
  bool interactive = false;  // a terminal, so lines may be redrawn
  bool color = false;        // never with NO_COLOR
  bool unicode = false;      // the locale or the terminal shows UTF-8
  int width = 100;           // columns
  int height = 0;            // rows; 0: no limit
};

// Detects the terminal from `fd`, NO_COLOR, TERM and the locale.
Terminal DetectTerminal(int fd);

// Returns `text` in bold or a colour ("31" red, "32" green, "33" yellow, "1" bold) if `terminal`
// has colour, otherwise unchanged.
std::string Colored(const Terminal& terminal, absl::string_view code, absl::string_view text);

// Returns "31,204".
std::string WithCommas(int64_t value);

// Returns "2d03h", "1h02m", "2m05s" or "14s".
std::string ShortDuration(absl::Duration duration);

// Returns the first `width` columns of UTF-8 text without escape sequences; control characters
// become spaces.
std::string CutToWidth(absl::string_view text, int width);

// As CutToWidth, but text that is cut ends in "…", which counts for `width`.
std::string ShortenToWidth(absl::string_view text, int width);

// Wraps `text` into lines of at most `width` columns (>= 4), broken at spaces where possible; all
// lines but the first are indented. Text beyond `lines_max` lines is cut.
std::vector<std::string> WrapToWidth(absl::string_view text, int width, int lines_max);

// Returns the number of columns of UTF-8 text without escape sequences: one for each code point.
int DisplayWidth(absl::string_view text);

struct ProgressWords {
  std::string what;   // "held-out text"
  std::string units;  // "windows"
};

// Shows the progress of work in this process, with the time left: one line, redrawn on a terminal;
// elsewhere a line every ten seconds. Threads: one at a time.
class WorkProgress {
 public:
  // `now`: when the work begins. Borrows `out`.
  WorkProgress(ProgressWords words, const Terminal& terminal, std::FILE* out, absl::Duration now);
  ~WorkProgress();  // erases the redrawn line
  WorkProgress(const WorkProgress&) = delete;
  WorkProgress& operator=(const WorkProgress&) = delete;

  // Shows "held-out text: 320 of 2,013 windows, 1m05s left". Requires: 0 < done <= all.
  void Show(int64_t done, int64_t all, absl::Duration now);

 private:
  const ProgressWords words_;
  const Terminal terminal_;
  std::FILE* out_;
  const absl::Duration started_at_;
  absl::Duration shown_at_;
  bool drawn_ = false;
};

}  // namespace megascale::cli
