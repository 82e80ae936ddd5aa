#include "runtime/base/text/shortlist.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace megascale::base {

std::string Shortlist(const std::vector<std::string>& items, size_t max) {
  const size_t shown = std::min(items.size(), max);
  const auto end = items.begin() + static_cast<std::ptrdiff_t>(shown);
  std::string text = absl::StrJoin(items.begin(), end, ", ");
  if (shown < items.size()) absl::StrAppend(&text, " and ", items.size() - shown, " more");
  return text;
}

}  // namespace megascale::base
