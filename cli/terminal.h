// What the output is connected to, and how numbers are written for people.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace megascale::cli {

struct Terminal {
  bool interactive = false;  // a person looks at it: lines may be redrawn
  bool color = false;        // never with NO_COLOR
  bool unicode = false;      // the locale or the terminal shows UTF-8
  int width = 100;           // columns
};

// Looks at `fd`, NO_COLOR, TERM and the locale.
Terminal DetectTerminal(int fd);

// `text` in bold or in a colour ("31" red, "32" green, "33" yellow, "1" bold) where `terminal` has
// colour.
std::string Colored(const Terminal& terminal, absl::string_view code, absl::string_view text);

// "31,204".
std::string WithCommas(int64_t value);

// "1h02m", "2m05s", "14s".
std::string ShortDuration(absl::Duration duration);

// The first `width` columns of UTF-8 text without escape sequences; control characters become
// spaces.
std::string CutToWidth(absl::string_view text, int width);

// Columns that UTF-8 text without escape sequences takes, one a code point.
int DisplayWidth(absl::string_view text);

}  // namespace megascale::cli
