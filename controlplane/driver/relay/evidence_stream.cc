#include "controlplane/driver/relay/evidence_stream.h"

#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace telemetry = megascale::telemetry::v1;

absl::Status CheckRuns(const control::Job& job) {
  if (job.has_ended_at()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.job_id(), ": has ended (", job.reason(),
                     "); what its agents knew of it is kept only while it runs"));
  }
  if (job.attempt() == 0 || job.ranks_size() == 0) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.job_id(),
                                                      ": none of its ranks has begun (",
                                                      job.reason(), "); repeat this once it runs"));
  }
  return absl::OkStatus();
}

absl::Status CheckKind(telemetry::EvidenceKind kind) {
  if (kind != telemetry::EVIDENCE_KIND_UNSPECIFIED && telemetry::EvidenceKind_IsValid(kind)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("kind: unknown value ", static_cast<int>(kind),
                                                 "; expected exchanges, metrics or stacks"));
}

absl::Status EmitSaved(const trace::EvidenceFile& saved, telemetry::EvidenceKind kind,
                       const std::set<int>& wanted, const EvidenceStreamPorts& ports) {
  const auto found = saved.evidence.find(kind);
  if (found == saved.evidence.end()) return absl::OkStatus();
  for (const control::StreamEvidenceResponse& response : found->second) {
    if (!wanted.empty() && wanted.count(response.rank()) == 0) continue;
    if (!ports.emit(response)) return absl::CancelledError("the reader is gone");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status StreamEvidence(const control::StreamEvidenceRequest& request,
                            const EvidenceStreamPorts& ports) {
  RETURN_IF_ERROR(CheckKind(request.kind()));
  ASSIGN_OR_RETURN(const control::Job job, ports.job());
  const std::set<int> wanted(request.ranks().begin(), request.ranks().end());
  if (job.has_ended_at() && !ports.asks_ended && ports.saved != nullptr) {
    if (const auto saved = ports.saved(job); saved.ok()) {
      return EmitSaved(*saved, request.kind(), wanted, ports);
    }
  }
  if (!ports.asks_ended) RETURN_IF_ERROR(CheckRuns(job));
  std::set<std::string> seen;
  std::map<std::string, absl::Status> away;  // by node: asked in vain, which costs a timeout
  for (const control::RankView& view : job.ranks()) {
    const int rank = view.status().rank();
    const std::string& node = view.node_id();
    if (!wanted.empty() && wanted.count(rank) == 0) continue;
    const bool is_new = seen.insert(node).second;
    if (request.kind() == telemetry::EVIDENCE_KIND_METRICS && !is_new) continue;
    agent::FetchEvidence fetch;
    fetch.set_job_id(job.job_id());
    fetch.set_attempt(job.attempt());
    fetch.set_rank(rank);
    fetch.set_kind(request.kind());
    const auto lost = away.find(node);
    absl::StatusOr<agent::EvidenceChunk> chunk =
        lost != away.end() ? lost->second : ports.fetch(node, fetch);
    if (absl::IsUnavailable(chunk.status()) || absl::IsDeadlineExceeded(chunk.status())) {
      away[node] = chunk.status();
    }
    control::StreamEvidenceResponse response;
    response.set_rank(rank);
    response.set_attempt(job.attempt());
    response.set_node_id(node);
    if (chunk.ok()) {
      *response.mutable_evidence() = std::move(*chunk->mutable_evidence());
    } else {
      response.set_error(std::string(chunk.status().message()));
    }
    if (!ports.emit(response)) return absl::CancelledError("the reader is gone");
  }
  return absl::OkStatus();
}

}  // namespace megascale::driver
