// Checks of single fields, with the texts of their refusals. The rules of a job specification
// consist of these checks. Private to this folder. Errors of all: InvalidArgument - the message
// begins with the field's name.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace megascale::job {

absl::Status Refuse(absl::string_view field, absl::string_view why);

// Returns the refusals among checks that do not depend on each other, one a line.
absl::Status All(const std::vector<absl::Status>& checks);

struct IntegerRange {
  int64_t least;
  int64_t most;
};
absl::Status CheckInteger(absl::string_view field, int64_t value, IntegerRange range);

// Accepts least < value < below, and value == least if `least_allowed`.
struct NumberRange {
  double least;
  double below;
  bool least_allowed = false;
};
absl::Status CheckNumber(absl::string_view field, double value, NumberRange range);

struct Named {
  absl::string_view field;
  int64_t value;
};
// Refuses `whole` unless it is a multiple of `part`.
absl::Status CheckDivides(Named whole, Named part);

}  // namespace megascale::job
