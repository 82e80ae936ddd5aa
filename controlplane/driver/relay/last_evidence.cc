#include "controlplane/driver/relay/last_evidence.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;
namespace telemetry = megascale::telemetry::v1;

constexpr int kRanksMax = 64;
constexpr int64_t kSteps = 2;

absl::Status ReadKind(telemetry::EvidenceKind kind, const std::vector<int>& ranks,
                      EvidenceStreamPorts ports, trace::EvidenceFile* file) {
  control::StreamEvidenceRequest request;
  request.set_job_id(file->job.job_id());
  request.set_kind(kind);
  for (const int rank : ranks) request.add_ranks(rank);
  ports.emit = [&](const control::StreamEvidenceResponse& response) {
    file->evidence[kind].push_back(response);
    return true;
  };
  return StreamEvidence(request, ports);
}

// Leaves out what is needed least; false: nothing is left that could be.
bool LeaveOut(int culprit, trace::EvidenceFile* file) {
  if (file->evidence.erase(telemetry::EVIDENCE_KIND_EXCHANGES) > 0) return true;
  auto& spans = file->spans;
  const auto last = std::find_if(spans.rbegin(), spans.rend(), [&](const auto& response) {
    return response.rank() != culprit && response.spans_size() > 0;
  });
  if (last == spans.rend()) return false;
  // Half of those that are left.
  size_t count = spans.size() / 2;
  for (auto it = last; it != spans.rend() && count > 0; ++it, --count) {
    if (it->rank() != culprit) it->clear_spans();
  }
  return true;
}

}  // namespace

std::string LastEvidencePath(const control::Job& job) {
  return absl::StrCat(job.directory(), "/last-evidence.gz");
}

absl::StatusOr<std::string> CollectLastEvidence(const control::Job& job, SpanStreamPorts spans,
                                                EvidenceStreamPorts evidence, size_t bytes_max) {
  trace::EvidenceFile file;
  file.job = job;
  file.job.clear_directory();
  spans.asks_ended = evidence.asks_ended = true;
  bool has_spans = false;
  spans.emit = [&](const control::StreamSpansResponse& response) {
    has_spans = has_spans || response.spans_size() > 0;
    file.spans.push_back(response);
    return true;
  };
  control::StreamSpansRequest request;
  request.set_job_id(job.job_id());
  request.set_first_step(std::max<int64_t>(0, job.last_step() - kSteps));
  RETURN_IF_ERROR(StreamSpans(request, spans));
  if (!has_spans) return absl::UnavailableError("no agent has spans of it");
  const int culprit = job.culprit().rank();
  std::vector<int> ranks;
  for (int rank = 0; rank < std::min(job.ranks_size(), kRanksMax); ++rank) ranks.push_back(rank);
  RETURN_IF_ERROR(ReadKind(telemetry::EVIDENCE_KIND_EXCHANGES, ranks, evidence, &file));
  RETURN_IF_ERROR(
      ReadKind(telemetry::EVIDENCE_KIND_METRICS, {std::max(0, culprit)}, evidence, &file));
  if (const auto cluster = evidence.cluster(); cluster.ok()) file.cluster = *cluster;
  for (;;) {
    ASSIGN_OR_RETURN(std::string content, trace::PackEvidence(file));
    if (content.size() <= bytes_max || !LeaveOut(culprit, &file)) return content;
  }
}

absl::StatusOr<trace::EvidenceFile> ReadLastEvidence(const control::Job& job, JobFiles* files) {
  const std::string path = LastEvidencePath(job);
  if (!files->Exists(path)) return absl::NotFoundError(absl::StrCat(path, ": does not exist"));
  ASSIGN_OR_RETURN(const std::string content, files->ReadAt(path, 0, 2 * kLastEvidenceBytesMax));
  absl::StatusOr<trace::EvidenceFile> file = trace::UnpackEvidence(content);
  if (!file.ok()) return absl::DataLossError(absl::StrCat(path, ": ", file.status().message()));
  return file;
}

}  // namespace megascale::driver
