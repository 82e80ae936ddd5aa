// Finds the machine that differs from the others of its job for minutes, in one metric after the
// other. Pure. Source: Deng et al., NSDI '25 (Minder), section 4.
//
//   for each metric, in order of priority; for each window of 8 seconds:
//     reconstruct each machine's window with the metric's model; take its mean distance from the
//     others; turn the distances into scores (z-scores).
//   A machine is a candidate in a window if its score and its distance are high enough. The suspect
//   is the machine that stays a candidate in every window for four minutes.
//
// Two things differ from the paper. In the paper, only the machine with the highest score is a
// candidate. Here several machines may be candidates at once: in a large job, at any time some
// healthy machine has a burst, which would interrupt the faulty machine's row of windows. And a
// candidate needs a minimum distance, because scores are relative: among few healthy machines with
// a tiny constant difference, one machine always has a high score. Options select the paper's
// method and its ablations.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "runtime/minder/aligned_series.h"
#include "runtime/minder/lstm_vae.h"

namespace megascale::minder {

enum class Embedding {
  kModelOfMetric,    // published
  kRaw,              // the window itself
  kOneModel,         // one model for all metrics
  kAllConcatenated,  // the windows of all metrics, one after the other
};

enum class Distance {
  kEuclidean,    // published: mean distance from the others
  kMahalanobis,  // from the mean of all
};

struct DetectorOptions {
  Embedding embedding = Embedding::kModelOfMetric;
  Distance distance = Distance::kEuclidean;
  bool has_one_candidate = false;  // true, as published: only the highest score makes a candidate
  bool needs_continuity = true;    // false: the first candidate is the suspect
  int continuity_windows = 240;    // a window begins each second
  // Among n machines, a score is at most sqrt(n - 1): 1.7 with 4 machines, 38.7 with 1,500. So a
  // candidate needs the smaller of `score_min` and `score_share_min` * sqrt(n - 1).
  double score_min = 3.0;
  double score_share_min = 0.5;  // of sqrt(n - 1)
  // Least mean distance from the others, as a share of the metric's range. For Euclidean distances.
  double distance_min = 0.04;
  int num_threads = 1;
};

struct Suspect {
  int machine = 0;
  int metric = 0;       // index of the metric; 0 with kAllConcatenated
  int begin = 0;        // the first second in which the machine was a candidate
  int found = 0;        // the second in which it had been a candidate long enough
  int end = 0;          // the first second in which it was no longer a candidate
  bool lasts = false;   // whether it is a candidate in the last window
  double score = 0;     // mean of these windows
  double distance = 0;  // mean of these windows
};

// Returns the score that a candidate needs among n machines.
double ScoreThreshold(const DetectorOptions& options, size_t n);

// Returns the first suspect that still differs in the last window; without one, the first suspect
// that differed earlier. Among several in the same metric and second, returns the suspect that
// differs most. `metrics` are in order of priority. `models`: one for each metric; one for
// kOneModel; none for raw windows. Returns no suspect for fewer than three machines (of two,
// nothing tells which one differs), or for series shorter than the continuity. Requires: all
// metrics have the same number of machines and of seconds; values are finite. Cost: for each
// metric, machine and second about 0.4 us of one core.
std::optional<Suspect> FindSuspect(absl::Span<const MetricSeries> metrics,
                                   absl::Span<const LstmVae> models,
                                   const DetectorOptions& options = {});

}  // namespace megascale::minder
