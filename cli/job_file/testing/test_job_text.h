// For tests of reading alone: texts that need not be whole jobs, as one answer with all mistakes.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "cli/job_file/job_text.h"

namespace megascale::cli {

// Reads `text` as that of "job.yaml".
inline absl::StatusOr<job::v1::JobSpec> ReadText(const std::string& text) {
  JobFileFindings findings;
  absl::StatusOr<job::v1::JobSpec> spec = ParseJobText("job.yaml", text, &findings);
  if (!spec.ok()) return spec;
  absl::Status mistakes = MistakesError(std::move(findings.mistakes));
  if (!mistakes.ok()) return mistakes;
  return spec;
}

// Applies a value of --set to `spec`.
inline absl::Status Apply(const std::string& assignment, job::v1::JobSpec* spec) {
  JobFileFindings findings;
  absl::Status set = ApplyOverride(assignment, spec, &findings);
  return set.ok() ? MistakesError(std::move(findings.mistakes)) : set;
}

}  // namespace megascale::cli
