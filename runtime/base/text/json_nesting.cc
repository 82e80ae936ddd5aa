#include "runtime/base/text/json_nesting.h"

#include "absl/strings/str_cat.h"

namespace megascale::base {
namespace {

constexpr int kDepthMax = 32;

}  // namespace

absl::Status CheckJsonNesting(absl::string_view text) {
  int depth = 0;
  bool is_quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') is_quoted = !is_quoted;
    if (is_quoted && c == '\\') ++i;  // what it escapes ends no text
    if (is_quoted) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kDepthMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("is nested more than ", kDepthMax, " levels deep; expected fewer"));
    }
  }
  return absl::OkStatus();
}

}  // namespace megascale::base
