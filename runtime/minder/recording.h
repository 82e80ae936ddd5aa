// Series of all machines of a job, and their text in CSV: what `megascale minder record` writes and
// `train` and `check --series` read. Other programs may write it, with metrics of their own.
//
//   machine,seconds,compute share,busy cores
//   n0,1764052800.0,0.41,1.97
//
// A line is what a machine measured at a time, in seconds on a clock that all machines share. An
// empty cell was not measured. Pure: from text and to text.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/minder/aligned_series.h"

namespace megascale::minder {

struct RecordedMachine {
  std::string name;
  std::vector<std::vector<Sample>> metrics;  // as Recording::metrics
};

struct Recording {
  std::vector<std::string> metrics;
  std::vector<RecordedMachine> machines;
};

// Errors: InvalidArgument - malformed; the message names the line.
absl::StatusOr<Recording> ParseRecording(absl::string_view csv);
// Whether a file may give this name to a machine or a metric: 1 to 128 printable characters.
bool IsName(absl::string_view text);
std::string FormatRecording(const Recording& recording);

// The time that all machines have in common, in whole seconds, at most the newest `seconds_max`.
// Machines without a sample do not count. `num_seconds` is 0 if there is none.
struct CommonTime {
  double begin = 0;
  int num_seconds = 0;
};
CommonTime CommonTimeOf(const Recording& recording, int seconds_max);

}  // namespace megascale::minder
