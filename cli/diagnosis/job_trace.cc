#include "cli/diagnosis/job_trace.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::cli {
namespace {

constexpr int64_t kStepsTracedMax = 1000;

absl::StatusOr<trace::JobSpans> Fetch(EvidenceSource* source, const control::v1::Job& job,
                                      int64_t first_step) {
  ASSIGN_OR_RETURN(trace::JobSpans spans, trace::JobSpans::Create(job.spec()));
  RETURN_IF_ERROR(source->Spans(first_step, [&](const auto& response) { spans.Add(response); }));
  return spans;
}

}  // namespace

absl::Status CheckStepsTraced(int64_t num_steps) {
  if (num_steps >= 1 && num_steps <= kStepsTracedMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--steps: ", num_steps, " is out of range; expected 1 to ", kStepsTracedMax));
}

absl::StatusOr<JobTrace> TraceJob(EvidenceSource* source, const control::v1::Job& job,
                                  int64_t num_steps) {
  // First asks for the newest steps only, which is less data. If a new attempt has rolled the job
  // back to before them, asks again for all.
  for (const int64_t first_step : {job.last_step() - num_steps + 1, int64_t{0}}) {
    ASSIGN_OR_RETURN(trace::JobSpans spans, Fetch(source, job, first_step));
    std::vector<timeline::TimedStep> steps = spans.Measure(static_cast<int>(num_steps));
    if (!steps.empty()) return JobTrace{std::move(spans), std::move(steps)};
    if (spans.errors().size() == spans.plans().size()) {
      return absl::FailedPreconditionError(absl::StrCat("job ", job.job_id(),
                                                        ": the spans of its ranks cannot be read; ",
                                                        spans.errors().front()));
    }
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "job ", job.job_id(), ": its ranks have not begun a step of attempt ", job.attempt(),
      "; repeat this once it trains (`megascale status ", job.job_id(), "`)"));
}

}  // namespace megascale::cli
