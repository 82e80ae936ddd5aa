// What is read of a job that has ended: its file (last_evidence.h), or nothing. Private to this
// folder.
#pragma once

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "controlplane/trace/evidence_file.h"
#include "proto/control.pb.h"

namespace megascale::driver {

// Returns what was kept of the job; nullopt: its agents are to be asked, if it runs.
template <typename Ports>
std::optional<trace::EvidenceFile> SavedOf(const megascale::control::v1::Job& job,
                                           const Ports& ports) {
  if (!job.has_ended_at() || ports.asks_ended || ports.saved == nullptr) return std::nullopt;
  auto saved = ports.saved(job);
  return saved.ok() ? std::optional(*std::move(saved)) : std::nullopt;
}

// `asks_ended`: its agents may be asked although it has ended. `what`: "what its ranks did".
// Errors: FailedPrecondition - the job has ended, or none of its ranks has begun.
absl::Status CheckRuns(const megascale::control::v1::Job& job, bool asks_ended,
                       absl::string_view what);

}  // namespace megascale::driver
