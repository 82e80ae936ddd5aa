// The models of all metrics, as `megascale minder train` writes them: JSON text that names the
// command that made it. Pure: from text and to text.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/minder/aligned_series.h"
#include "runtime/minder/lstm_vae.h"

namespace megascale::minder {

struct MetricModel {
  std::string name;
  Limits limits;
  bool has_open_limit = false;  // whether Raised raises the upper limit
  LstmVae model;
};

struct MinderModels {
  std::string made_by;               // the command and its input
  std::vector<MetricModel> metrics;  // in order of priority; not empty
};

// Errors: InvalidArgument - malformed, or numbers that no model can have; the message names the
// metric.
absl::StatusOr<MinderModels> ParseModels(absl::string_view json);

// The same models give the same text.
std::string FormatModels(const MinderModels& models);

// Returns the models that are built into the program, from runtime/minder/default_models.json.
const MinderModels& DefaultModels();

}  // namespace megascale::minder
