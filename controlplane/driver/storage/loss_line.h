// A line of the loss log. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/telemetry.pb.h"

namespace megascale::driver {

// The file in a job's folder.
inline constexpr char kLossLogFile[] = "metrics.jsonl";

// Returns the record as one line of JSON, with its end. Doubles have enough digits to read the same
// bits back; null stands for a number that is not finite.
std::string ToLossLine(const megascale::telemetry::v1::StepRecord& record);
// Errors: DataLoss - it is not a record.
absl::StatusOr<megascale::telemetry::v1::StepRecord> FromLossLine(absl::string_view text);

}  // namespace megascale::driver
