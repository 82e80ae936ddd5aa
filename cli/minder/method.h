// The words of `megascale minder --method`: Minder, and the published ablations. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/minder/detector.h"

namespace megascale::cli {

// Returns all words; the first is the default.
std::vector<std::string> MinderMethods();

// Returns the detector's options for a method. Errors: InvalidArgument - there is no such word; the
// message lists all words.
absl::StatusOr<minder::DetectorOptions> OptionsOfMethod(absl::string_view method);

}  // namespace megascale::cli
