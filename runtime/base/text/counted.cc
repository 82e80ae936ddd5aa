#include "runtime/base/text/counted.h"

#include "absl/strings/str_cat.h"

namespace megascale::base {

std::string Counted(int64_t count, absl::string_view what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

}  // namespace megascale::base
