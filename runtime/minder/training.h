// Trains a metric's model on normal data. Pure and deterministic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/minder/aligned_series.h"
#include "runtime/minder/lstm_vae.h"
#include "runtime/minder/model_file.h"
#include "runtime/minder/recording.h"

namespace megascale::minder {

struct TrainingSetOptions {
  int num_windows = 2000;  // windows of the data, of all machines in turn, at random seconds
  // For each window of the data, the number of copies at other levels. A faulty machine has a level
  // that normal data do not have, and the model must reconstruct it as well as the others.
  double level_copies = 1.0;
  uint64_t seed = 1;
};

// Returns windows to train on; empty if all series are shorter than a window. Requires: all series
// of a metric have the same length.
std::vector<Window> TrainingWindows(absl::Span<const MetricSeries> recordings,
                                    const TrainingSetOptions& options = {});

// Returns the mean squared error of the reconstructed windows.
double ReconstructionError(const LstmVae& model, absl::Span<const Window> windows);

// A metric as recordings name it. `has_open_limit` as in MetricModel.
struct MetricKind {
  std::string name;
  Limits limits;
  bool has_open_limit = false;
};

struct TrainingOptions {
  TrainOptions model;
  TrainingSetOptions set;
  int num_threads = 1;  // the result does not depend on it
};

// Trains a model for each metric of the recordings: first the metrics in `kinds`, in that order,
// then the others, with limits from 0 to their largest value. `made_by` is left empty. Errors:
// InvalidArgument - nothing to train on.
absl::StatusOr<MinderModels> TrainModels(absl::Span<const Recording> recordings,
                                         absl::Span<const MetricKind> kinds,
                                         const TrainingOptions& options = {});

}  // namespace megascale::minder
