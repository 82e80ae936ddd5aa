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

// A machine that does not share the time of the others.
struct LeftOut {
  size_t machine = 0;
  std::string why;
};

// The time that machines have in common, in whole seconds. `num_seconds` is 0 if there is none.
struct CommonTime {
  double begin = 0;
  int num_seconds = 0;
  std::vector<LeftOut> left_out;
};
struct CommonTimeOptions {
  int seconds_max = 0;      // the newest ones count
  int seconds_needed = 0;   // a machine with fewer is left out, if three others have as many
  double gap_seconds = 60;  // without a sample, that are a gap
};
// Machines without a sample do not count. A machine whose newest sample is more than a gap away
// from the others' is left out. A gap that most machines share, such as a restart of the job, ends
// at the beginning of the common time.
CommonTime CommonTimeOf(const Recording& recording, const CommonTimeOptions& options);

}  // namespace megascale::minder
