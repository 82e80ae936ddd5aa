// Text of unknown origin, made safe for a terminal and for one line of a log: what a user typed,
// what a file holds, what a peer sent. Thread-safe: pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace megascale::base {

// The length in bytes of the UTF-8 character that `text` begins with; 0 where it begins with none.
// Requires: text is not empty.
size_t Utf8Length(absl::string_view text);

// True where `text` is UTF-8 from end to end.
bool IsUtf8(absl::string_view text);

// `text` in one line without control characters: those, bytes that are no UTF-8 and characters that
// turn the direction of writing are shown as \n, \t, \x1b, \u202e. At most `bytes_max` bytes of
// `text` are shown, whole characters, then "…".
std::string Printable(absl::string_view text, size_t bytes_max = absl::string_view::npos);

}  // namespace megascale::base
