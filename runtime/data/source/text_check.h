// Names what a file is that is no text: by the bytes with which other formats begin, by its many
// NULs, by its encoding. Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace megascale::data {

// How many of its first bytes tell what a file is: the magic of tar comes last, at byte 257.
inline constexpr size_t kBeginBytes = 4096;

// The mark with which editors on Windows begin files in UTF-8; it is no part of the text.
inline constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";

enum class TextForm { kPlain, kJsonLines };

// Returns what a file is that begins with `begin`, in words that follow its name: "is a Parquet
// file; …"; empty: the bytes are of no format that is known and no text.
std::string NameOfFormat(absl::string_view begin);

// Checks the first bytes of a text, after unpacking: up to kBeginBytes. Errors: InvalidArgument -
// one line without the file's name: another format; binary data; another encoding than UTF-8, if
// too much of it is not UTF-8 to be left out; or, of JSON Lines, a file in another form of JSON.
absl::Status CheckTextBegin(absl::string_view begin, TextForm form);

}  // namespace megascale::data
