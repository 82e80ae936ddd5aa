#include "runtime/job/field_checks.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace megascale::job {

absl::Status Refuse(absl::string_view field, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", why));
}

absl::Status All(const std::vector<absl::Status>& checks) {
  std::vector<absl::string_view> refusals;
  for (const absl::Status& check : checks) {
    if (!check.ok()) refusals.push_back(check.message());
  }
  if (refusals.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(refusals, "\n"));
}

absl::Status CheckInteger(absl::string_view field, int64_t value, IntegerRange range) {
  if (value >= range.least && value <= range.most) return absl::OkStatus();
  if (value == 0) {
    return Refuse(field,
                  absl::StrCat("is missing or 0; expected ", range.least, " to ", range.most));
  }
  return Refuse(
      field, absl::StrCat(value, " is out of range; expected ", range.least, " to ", range.most));
}

absl::Status CheckNumber(absl::string_view field, double value, NumberRange range) {
  const bool high_enough = range.least_allowed ? value >= range.least : value > range.least;
  if (std::isfinite(value) && high_enough && value < range.below) return absl::OkStatus();
  return Refuse(field, absl::StrCat(value, " is out of range; expected ",
                                    range.least_allowed ? "at least " : "more than ", range.least,
                                    " and less than ", range.below));
}

absl::Status CheckDivides(Named whole, Named part) {
  if (whole.value % part.value == 0) return absl::OkStatus();
  return Refuse(whole.field,
                absl::StrCat(whole.value, " is not a multiple of ", part.field, " = ", part.value,
                             " (", whole.value, " = ", whole.value / part.value, " × ", part.value,
                             " + ", whole.value % part.value, ")"));
}

}  // namespace megascale::job
