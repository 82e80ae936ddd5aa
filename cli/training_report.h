// What `local` ends with: the loss curve, the held-out loss beside what xz needs, a sample, and
// what to type next.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/inference.h"
#include "cli/loss_curve.h"
#include "proto/control.pb.h"

namespace megascale::cli {

struct TrainingReport {
  std::string checkpoint;  // directory
  HeldOutLoss held_out;
  double xz_bits_per_byte = 0;  // of the same bytes; 0: there is no xz
  std::string sample;
};

// Loads the job's last checkpoint, measures and samples it. Errors: those of Inference.
absl::StatusOr<TrainingReport> MakeTrainingReport(const control::v1::Job& job);

// The losses of metrics.jsonl in the job's folder, or `seen` where that cannot be read.
std::vector<CurvePoint> LossesOf(const control::v1::Job& job, const std::vector<CurvePoint>& seen);

void PrintCurve(const std::vector<CurvePoint>& losses);
// `program` is what to type for this program.
void PrintTrainingReport(const TrainingReport& report, const std::string& program);
void PrintTrainingReportJson(const control::v1::Job& job, const TrainingReport& report);

}  // namespace megascale::cli
