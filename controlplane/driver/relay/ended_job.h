// Where a job's evidence is read from: a job that has ended has a file (last_evidence.h), a running
// job has agents. Private to this folder.
#pragma once

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "controlplane/trace/evidence_file.h"
#include "proto/control.pb.h"

namespace megascale::driver {

// Returns what was kept of a job that has ended; nullopt: nothing was, or its agents are to be
// asked.
template <typename Ports>
std::optional<trace::EvidenceFile> SavedOf(const megascale::control::v1::Job& job,
                                           const Ports& ports) {
  if (!job.has_ended_at() || ports.asks_ended || ports.saved == nullptr) return std::nullopt;
  auto saved = ports.saved(job);
  return saved.ok() ? std::optional(*std::move(saved)) : std::nullopt;
}

// Checks that the job's agents may be asked. `asks_ended`: also if the job has ended. `what`: for
// the message, such as "what its ranks did". Errors: FailedPrecondition - the job has ended, or
// none of its ranks has begun.
absl::Status CheckRuns(const megascale::control::v1::Job& job, bool asks_ended,
                       absl::string_view what);

}  // namespace megascale::driver
