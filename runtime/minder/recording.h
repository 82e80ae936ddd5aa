// Series of all machines of a job, and their text in CSV: what `megascale minder record` writes and
// `train` and `check --series` read. Other programs may write such text, with metrics of their own.
//
//   machine,seconds,compute share,busy cores
//   n0,1764052800.0,0.41,1.97
//
// Each line has the values that a machine measured at one time, in seconds on a clock that all
// machines share. In an empty cell, nothing was measured. A few malformed lines are left out and
// counted. Pure: from text and to text.
#pragma once

#include <cstdint>
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
  int64_t num_bad_lines = 0;        // of the text; left out
  std::string first_bad_line = "";  // what is wrong with the first of them
};

// A text is refused if more than this share of its lines is malformed.
inline constexpr double kBadLinesMax = 0.01;

// Errors: InvalidArgument - the header, or too many lines are malformed; the message names the
// first one.
absl::StatusOr<Recording> ParseRecording(absl::string_view csv);
// Whether a file may give this name to a machine or a metric: 1 to 128 printable characters.
bool IsName(absl::string_view text);
std::string FormatRecording(const Recording& recording);

// A machine that has too little time in common with the others.
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
  int seconds_needed = 0;   // a machine with fewer is left out if three others have enough
  double gap_seconds = 60;  // a longer time without a sample is a gap
};
// Machines without a sample do not count. A machine is left out if the time of its newest sample
// differs by more than a gap from the median of all machines. After a gap that most machines share,
// such as a restart of the job, the common time begins at the end of this gap.
CommonTime CommonTimeOf(const Recording& recording, const CommonTimeOptions& options);

}  // namespace megascale::minder
