// The final report of `local`: the loss curve, the held-out loss compared with xz, a sample, and
// commands to type next.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/view/loss_curve.h"
#include "proto/control.pb.h"
#include "runtime/inference/inference.h"

namespace megascale::cli {

struct TrainingReport {
  std::string checkpoint;      // directory
  bool has_tokenizer = false;  // otherwise every byte is a token
  HeldOutLoss held_out;
  std::string not_measured;     // why held_out is unset; empty: it is set
  double xz_bits_per_byte = 0;  // for the same bytes; 0: xz is not installed
  std::string sample;
};

// Loads the job's last checkpoint, measures the held-out loss and samples text. Held-out text that
// is too short to measure (less than a window) is not an error, because the job has trained.
// Errors: those of Inference::Load, TextGenerator::Open and TextGenerator::Generate.
absl::StatusOr<TrainingReport> MakeTrainingReport(const control::v1::Job& job,
                                                  EvaluateOptions options);

struct Losses {
  std::vector<CurvePoint> training;
  std::vector<CurvePoint> held_out;  // after the steps that were evaluated
};
// Returns the losses from metrics.jsonl in the job's folder; if the file cannot be read, the
// training losses that were `seen`.
Losses LossesOf(const control::v1::Job& job, const std::vector<CurvePoint>& seen);

// Draws both curves, and says by how much the model overfits (cli/view/overfitting.h).
void PrintCurve(const Losses& losses, bool has_tokenizer);
// Prints the report. `program`: how the user would type this program's name.
void PrintTrainingReport(const TrainingReport& report, const std::string& program);
void PrintTrainingReportJson(const control::v1::Job& job, const TrainingReport& report);

}  // namespace megascale::cli
