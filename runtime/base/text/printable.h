// Makes text of unknown origin (user input, file content, messages of peers) safe for a terminal
// and for one line of a log. Threads: any; pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace megascale::base {

// Returns the bytes of the UTF-8 character at the beginning of `text`; 0 if there is no valid one.
// Requires: text is not empty.
size_t Utf8Length(absl::string_view text);

// True if all of `text` is valid UTF-8.
bool IsUtf8(absl::string_view text);

// Returns `text` as one line without control characters: these, invalid UTF-8 and characters that
// change the direction of writing are shown as \n, \t, \x1b, \u202e. Shows at most `bytes_max`
// bytes of `text`, in whole characters, then "…".
std::string Printable(absl::string_view text, size_t bytes_max = absl::string_view::npos);

}  // namespace megascale::base
