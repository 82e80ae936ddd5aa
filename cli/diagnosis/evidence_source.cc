#include "cli/diagnosis/evidence_source.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/time/clock.h"
#include "cli/command_line/report.h"
#include "cli/diagnosis/first_error.h"
#include "controlplane/trace/evidence_file.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/repeated.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"

namespace megascale::cli {
namespace {

using control::v1::StreamEvidenceResponse;
using control::v1::StreamSpansResponse;

constexpr int kSamplesSaved = 20;
constexpr int kEndedCallsSaved = 64;
constexpr size_t kErrorBytesMax = 300;
// How much of a log, and for how long, is searched for the first error.
constexpr size_t kLogBytesMax = size_t{64} << 20;
constexpr absl::Duration kLogTimeMax = absl::Seconds(3);

class Live final : public EvidenceSource {
 public:
  Live(client::JobClient* client, std::string job_id)
      : client_(*client), job_id_(std::move(job_id)) {}

  absl::StatusOr<control::v1::Job> Job() override { return client_.Get(job_id_); }
  control::v1::GetClusterResponse Cluster() override {
    return client_.Cluster().value_or(control::v1::GetClusterResponse());
  }
  absl::Status Spans(int64_t first_step,
                     const std::function<void(const StreamSpansResponse&)>& add) override {
    control::v1::StreamSpansRequest request;
    request.set_job_id(job_id_);
    request.set_first_step(first_step);
    return client_.Spans(request, {add, {}});
  }
  std::vector<StreamEvidenceResponse> Evidence(telemetry::v1::EvidenceKind kind,
                                               absl::Span<const int> ranks) override {
    control::v1::StreamEvidenceRequest request;
    request.set_job_id(job_id_);
    request.set_kind(kind);
    for (const int rank : ranks) request.add_ranks(rank);
    std::vector<StreamEvidenceResponse> responses;
    const absl::Status read = client_.Evidence(
        request,
        {[&](const StreamEvidenceResponse& response) { responses.push_back(response); }, {}});
    // They come in the order of the agents' answers.
    std::stable_sort(responses.begin(), responses.end(),
                     [](const auto& a, const auto& b) { return a.rank() < b.rank(); });
    if (!read.ok() && !ranks.empty()) {
      StreamEvidenceResponse& failed = responses.emplace_back();
      failed.set_rank(ranks[0]);
      failed.set_error(std::string(read.message()));
    }
    return responses;
  }
  std::string FirstErrorOf(int rank, int64_t attempt) override {
    control::v1::StreamLogsRequest request;
    request.set_job_id(job_id_);
    request.set_rank(rank);
    request.set_attempt(attempt);
    FirstError first;
    size_t num_bytes = 0;
    const absl::Duration deadline = base::RealClock().Monotonic() + kLogTimeMax;
    // An error leaves what has been read until then.
    client_
        .Logs(request,
              {[&](const control::v1::StreamLogsResponse& piece) {
                 num_bytes += piece.data().size();
                 first.Add(piece.data());
               },
               [&] {
                 return !first.line().empty() || num_bytes > kLogBytesMax ||
                        base::RealClock().Monotonic() > deadline;
               }},
              {.absence_max = absl::ZeroDuration()})
        .IgnoreError();
    return first.line();
  }
  bool Wait(absl::Duration duration) override {
    absl::SleepFor(duration);
    return true;
  }

 private:
  client::JobClient& client_;
  const std::string job_id_;
};

class Saved final : public EvidenceSource {
 public:
  explicit Saved(trace::EvidenceFile file) : file_(std::move(file)) {}

  absl::StatusOr<control::v1::Job> Job() override { return file_.job; }
  control::v1::GetClusterResponse Cluster() override { return file_.cluster; }
  absl::Status Spans(int64_t first_step,
                     const std::function<void(const StreamSpansResponse&)>& add) override {
    if (file_.spans.empty()) {
      return absl::FailedPreconditionError("no spans were saved: no rank of the job ran");
    }
    for (StreamSpansResponse response : file_.spans) {
      base::EraseIf(response.mutable_spans(),
                    [&](const auto& span) { return span.step() < first_step; });
      add(response);
    }
    return absl::OkStatus();
  }
  std::vector<StreamEvidenceResponse> Evidence(telemetry::v1::EvidenceKind kind,
                                               absl::Span<const int> ranks) override {
    std::vector<StreamEvidenceResponse> found;
    for (const StreamEvidenceResponse& response : file_.evidence[kind]) {
      if (ranks.empty() || absl::c_linear_search(ranks, response.rank())) found.push_back(response);
    }
    return found;
  }
  std::string FirstErrorOf(int rank, int64_t attempt) override {
    for (const control::v1::StreamLogsResponse& log : file_.logs) {
      if (log.rank() == rank && log.attempt() == attempt) {
        return base::Printable(log.data(), kErrorBytesMax);
      }
    }
    return "";
  }
  bool Wait(absl::Duration /*duration*/) override { return false; }

 private:
  trace::EvidenceFile file_;
};

}  // namespace

std::unique_ptr<EvidenceSource> LiveEvidence(client::JobClient* client, std::string job_id) {
  return std::make_unique<Live>(client, std::move(job_id));
}

absl::Status SaveEvidence(EvidenceSource* source, const SaveOptions& options,
                          const std::string& path) {
  trace::EvidenceFile file;
  ASSIGN_OR_RETURN(const control::v1::Job before, source->Job());
  absl::Status spans =
      source->Spans(std::max<int64_t>(0, before.last_step() - options.num_steps + 1),
                    [&](const auto& response) { file.spans.push_back(response); });
  if (!spans.ok() && spans.code() != absl::StatusCode::kFailedPrecondition) return spans;
  for (const auto kind :
       {telemetry::v1::EVIDENCE_KIND_EXCHANGES, telemetry::v1::EVIDENCE_KIND_METRICS}) {
    file.evidence[kind] = source->Evidence(kind, {});
    for (StreamEvidenceResponse& response : file.evidence[kind]) {
      base::KeepNewest(kSamplesSaved, response.mutable_evidence()->mutable_samples());
      base::KeepNewest(kEndedCallsSaved, response.mutable_evidence()->mutable_completed());
    }
  }
  if (options.rank >= 0) {
    control::v1::StreamLogsResponse log;
    log.set_rank(options.rank);
    log.set_attempt(options.attempt);
    log.set_data(source->FirstErrorOf(options.rank, options.attempt));
    if (!log.data().empty()) file.logs.push_back(log);
  }
  file.cluster = source->Cluster();
  // As in a diagnosis, the job last: ranks show their life about once a second.
  ASSIGN_OR_RETURN(file.job, source->Job());
  file.job.clear_directory();
  ASSIGN_OR_RETURN(const std::string packed, trace::PackEvidence(file));
  return WriteOutputFile(path, packed);
}

absl::StatusOr<std::unique_ptr<EvidenceSource>> SavedEvidence(const std::string& path) {
  ASSIGN_OR_RETURN(const base::UniqueFd opened, OpenInputFile(path));
  ASSIGN_OR_RETURN(const std::string content,
                   base::ReadAll(opened.get(), trace::kEvidenceBytesMax));
  ASSIGN_OR_RETURN(trace::EvidenceFile file, trace::UnpackEvidence(content));
  return std::make_unique<Saved>(std::move(file));
}

}  // namespace megascale::cli
