// Looks for a machine of a job that differs from the others: from recorded series to a verdict.
// Pure. Start here; detector.h has the method.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/minder/detector.h"
#include "runtime/minder/model_file.h"
#include "runtime/minder/recording.h"

namespace megascale::minder {

inline constexpr int kExaminedSeconds = 900;
// A machine that measured nothing for longer than this is left out.
inline constexpr double kGapSecondsMax = 60;
inline constexpr size_t kCurvePoints = 30;

struct Verdict {
  std::string machine;
  std::string metric;
  double begin = 0;    // when the difference began, on the recording's clock
  double seconds = 0;  // how long it lasted within the series
  bool lasts = false;  // whether it still differs at the end of the series
  double score = 0;    // mean; at most `score_max`
  double score_max = 0;
  double distance = 0;              // from the others, as a share of the metric's range
  double value = 0;                 // the machine's mean while it differed, in the metric's unit
  double usual = 0;                 // the median machine's mean in the same time
  std::vector<double> curve;        // the machine's means in kCurvePoints parts, oldest first
  std::vector<double> usual_curve;  // medians of the compared machines' means in the same parts
  double curve_begin = 0;           // when the series begins, on the recording's clock
  size_t num_compared = 0;          // machines
};

struct Examination {
  std::optional<Verdict> verdict;
  int num_seconds = 0;             // seconds that all machines have in common
  size_t num_compared = 0;         // machines
  std::vector<std::string> notes;  // what could not be compared, and why
};

// Examines the newest kExaminedSeconds. `groups` has a number for each machine. Machines with the
// same number should behave alike; only these are compared with each other. Empty: all are
// compared. Prefers a verdict that lasts to one that is over.
Examination Examine(const Recording& recording, const std::vector<int>& groups,
                    const MinderModels& models, const DetectorOptions& options);

}  // namespace megascale::minder
