// Finds what a folder has instead of a tensor that is missing, for the message: the same name
// behind the prefix of a wrapper, without its own prefix, or nearly the same one. Private to this
// folder. Threads: plain function.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "runtime/hugging_face/folder.h"

namespace megascale::hugging_face {

// Returns what goes after "has no tensor NAME", with what to do; "" if nothing is near.
std::string NearestTensor(absl::string_view name,
                          const std::map<std::string, StoredTensor>& tensors);

}  // namespace megascale::hugging_face
