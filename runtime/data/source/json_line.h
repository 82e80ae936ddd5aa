// The text of one line of JSON Lines. Threads: pure function.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace megascale::data {

// Arrays and objects of a line may be nested this deep.
inline constexpr int kJsonDepthMax = 100;

// Replaces `text` by the field of one line. Parses without building a tree, so that it takes the
// memory of the line and of the text alone. Reads over NaN, Infinity and -Infinity, which Python
// writes, and over numbers too large for a double, where they are not the text. Errors:
// InvalidArgument - why the line has no text. Cost: linear in the line.
absl::Status ReadJsonLine(absl::string_view line, const std::string& field, std::string* text);

}  // namespace megascale::data
