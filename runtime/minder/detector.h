// Finds the machine that differs from the others of its job for minutes, in one metric after the
// other. Pure. Source: Deng et al., NSDI '25 (Minder), section 4.
//
//   for each metric, in order of priority; for each window of 8 seconds:
//     write the window of each machine back by the metric's model; mean distance from the others;
//     normal score of these distances.
//   A machine is a candidate in a window if its score and its distance are high enough. Who is a
//   candidate in all windows of four minutes is the suspect.
//
// Two things differ from the paper. There only the highest score makes a candidate; here several
// machines may be candidates at once, because in a large job some healthy machine has a burst at
// any time, and it would break the chain of the faulty one. And a candidate needs a distance: of
// few healthy machines that differ by a constant hair, one always has a high score. The paper's way
// is an option, as are its ablations.
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
  // The score of one of n machines is at most sqrt(n - 1): 1.7 of 4 machines, 38.7 of 1,500. So a
  // candidate needs the smaller of these two.
  double score_min = 3.0;
  double score_share_min = 0.5;  // of sqrt(n - 1)
  // Least mean distance from the others, as a share of the metric's range. For Euclidean distances.
  double distance_min = 0.04;
  int num_threads = 1;
};

struct Suspect {
  int machine = 0;
  int metric = 0;       // its index; of concatenated metrics 0
  int begin = 0;        // the second from which on the machine was a candidate
  int found = 0;        // the second in which it had been so for long enough
  int end = 0;          // the second in which it was one no more
  bool lasts = false;   // it is a candidate in the last window
  double score = 0;     // mean of these windows
  double distance = 0;  // mean of these windows
};

// Returns the score that a candidate needs among n machines.
double ScoreThreshold(const DetectorOptions& options, size_t n);

// Returns the first suspect; of several in the same metric and second the one that differs most.
// `metrics` in order of priority; `models`: one for each metric, one for kOneModel, none for raw
// windows. Fewer than three machines have no suspect: nothing tells which one of two differs.
// Neither have series that are shorter than the continuity. Requires: all metrics have the same
// number of machines and of seconds; values are finite. Cost: for each metric about 0.4 us of one
// core for each machine and second.
std::optional<Suspect> FindSuspect(absl::Span<const MetricSeries> metrics,
                                   absl::Span<const LstmVae> models,
                                   const DetectorOptions& options = {});

}  // namespace megascale::minder
