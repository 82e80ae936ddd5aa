#include "controlplane/driver/relay/last_evidence.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;
namespace telemetry = megascale::telemetry::v1;

constexpr int kRanksMax = 64;
// How many steps are read, and how many of these are kept in any case.
struct StepsRead {
  int64_t most = 3;
  int64_t least = 2;
};
constexpr StepsRead kStepsOfSuccess = {16, 4};  // four suffice to judge whether a job was slow

// A reading that was stopped has read a part.
absl::Status UnlessStopped(absl::Status read) {
  return absl::IsCancelled(read) ? absl::OkStatus() : std::move(read);
}

absl::Status ReadKind(telemetry::EvidenceKind kind, const std::vector<int>& ranks,
                      EvidenceStreamPorts ports, const std::function<bool()>& should_stop,
                      trace::EvidenceFile* file) {
  control::StreamEvidenceRequest request;
  request.set_job_id(file->job.job_id());
  request.set_kind(kind);
  request.set_only_ranks_of_job(true);
  for (const int rank : ranks) request.add_ranks(rank);
  ports.emit = [&](const control::StreamEvidenceResponse& response) {
    file->evidence[kind].push_back(response);
    return !should_stop();
  };
  return UnlessStopped(StreamEvidence(request, ports));
}

void LeaveOutSpans(control::StreamSpansResponse* response) {
  google::protobuf::RepeatedPtrField<telemetry::Span> freed;  // clear_spans keeps their memory
  response->mutable_spans()->Swap(&freed);
  response->set_error("its spans were left out, because the file would be too large");
}

// Leaves out the older half of the steps, but not of the newest `least`; false: these are left. An
// agent may report any number as a step: none is newer than the step that the job was in.
bool LeaveOutSteps(int64_t least, trace::EvidenceFile* file) {
  const int64_t last = std::max<int64_t>(0, file->job.last_step()) + 1;
  const auto step_of = [last](const telemetry::Span& span) {
    return std::clamp<int64_t>(span.step(), 0, last);
  };
  int64_t oldest = last;
  int64_t newest = 0;
  for (const control::StreamSpansResponse& response : file->spans) {
    for (const telemetry::Span& span : response.spans()) {
      oldest = std::min(oldest, step_of(span));
      newest = std::max(newest, step_of(span));
    }
  }
  if (oldest > newest - least) return false;
  const int64_t first = std::min(newest - least + 1, oldest + (newest - oldest + 1) / 2);
  for (control::StreamSpansResponse& response : file->spans) {
    google::protobuf::RepeatedPtrField<telemetry::Span> kept;  // erasing keeps their memory
    for (telemetry::Span& span : *response.mutable_spans()) {
      if (step_of(span) >= first) *kept.Add() = std::move(span);
    }
    response.mutable_spans()->Swap(&kept);
  }
  return true;
}

// Leaves out what is needed least; false: nothing is left that could be.
bool LeaveOut(int culprit, const StepsRead& steps, trace::EvidenceFile* file) {
  if (file->evidence.erase(telemetry::EVIDENCE_KIND_EXCHANGES) > 0) return true;
  if (LeaveOutSteps(steps.least, file)) return true;
  std::vector<control::StreamSpansResponse*> others;
  for (control::StreamSpansResponse& response : file->spans) {
    if (response.rank() != culprit && response.spans_size() > 0) others.push_back(&response);
  }
  // The last half of them.
  for (size_t i = others.size() / 2; i < others.size(); ++i) LeaveOutSpans(others[i]);
  if (!others.empty()) return true;
  if (file->evidence.erase(telemetry::EVIDENCE_KIND_METRICS) > 0) return true;
  const bool has_cluster = file->cluster.nodes_size() > 0;
  file->cluster.Clear();
  return has_cluster;
}

// Returns the content of a file that ReadLastEvidence can read.
absl::StatusOr<std::string> PackWithin(size_t bytes_max, int culprit, const StepsRead& steps,
                                       trace::EvidenceFile* file) {
  for (;;) {
    absl::StatusOr<std::string> content = trace::PackEvidence(*file, kLastEvidenceTextMax);
    const bool is_small = content.ok() && content->size() <= bytes_max;
    if (is_small || (!content.ok() && !absl::IsResourceExhausted(content.status()))) return content;
    if (LeaveOut(culprit, steps, file)) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat("job ", file->job.job_id(), ": what its agents kept of the culprit, rank ",
                     culprit, ", has more than ", bytes_max, " bytes; writes no file"));
  }
}

}  // namespace

std::string LastEvidencePath(const control::Job& job) {
  return absl::StrCat(job.directory(), "/last-evidence.gz");
}

absl::StatusOr<std::string> CollectLastEvidence(const control::Job& job, SpanStreamPorts spans,
                                                EvidenceStreamPorts evidence,
                                                const CollectOptions& options) {
  trace::EvidenceFile file;
  file.job = job;
  file.job.clear_directory();
  spans.asks_ended = evidence.asks_ended = true;
  const auto should_stop = [&] { return options.should_stop != nullptr && options.should_stop(); };
  const bool has_succeeded = job.state() == control::JOB_STATE_SUCCEEDED;
  // A culprit stays recorded after the job has recovered.
  const int culprit = has_succeeded || !job.has_culprit() ? -1 : job.culprit().rank();
  bool has_spans = false;
  size_t spans_bytes = 0;
  spans.emit = [&](const control::StreamSpansResponse& response) {
    has_spans = has_spans || response.spans_size() > 0;
    file.spans.push_back(response);
    if (response.rank() == culprit || response.spans_size() == 0) return !should_stop();
    spans_bytes += response.ByteSizeLong();
    if (spans_bytes > options.spans_max) LeaveOutSpans(&file.spans.back());
    return !should_stop();
  };
  control::StreamSpansRequest request;
  request.set_job_id(job.job_id());
  const StepsRead steps = has_succeeded ? kStepsOfSuccess : StepsRead();
  request.set_first_step(std::max<int64_t>(0, job.last_step() - steps.most + 1));
  RETURN_IF_ERROR(UnlessStopped(StreamSpans(request, spans)));
  if (!has_spans) return absl::UnavailableError("no agent has spans of it");
  std::vector<int> ranks;
  for (int rank = 0; rank < std::min(job.ranks_size(), kRanksMax); ++rank) ranks.push_back(rank);
  const std::vector<int> of_culprit = {std::max(0, culprit)};
  RETURN_IF_ERROR(
      ReadKind(telemetry::EVIDENCE_KIND_EXCHANGES, ranks, evidence, should_stop, &file));
  RETURN_IF_ERROR(
      ReadKind(telemetry::EVIDENCE_KIND_METRICS, of_culprit, evidence, should_stop, &file));
  if (const auto cluster = evidence.cluster(); cluster.ok()) file.cluster = *cluster;
  const size_t bytes_max =
      has_succeeded ? std::min(options.bytes_max, kLastEvidenceBytesOfSuccess) : options.bytes_max;
  return PackWithin(bytes_max, culprit, steps, &file);
}

absl::StatusOr<trace::EvidenceFile> ReadLastEvidence(const control::Job& job, JobFiles* files) {
  const std::string path = LastEvidencePath(job);
  if (!files->Exists(path)) return absl::NotFoundError(absl::StrCat(path, ": does not exist"));
  ASSIGN_OR_RETURN(const std::string content, files->ReadAt(path, 0, 2 * kLastEvidenceBytesMax));
  absl::StatusOr<trace::EvidenceFile> file = trace::UnpackEvidence(content, kLastEvidenceTextMax);
  if (!file.ok()) return absl::DataLossError(absl::StrCat(path, ": ", file.status().message()));
  return file;
}

}  // namespace megascale::driver
