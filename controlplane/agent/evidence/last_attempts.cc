#include "controlplane/agent/evidence/last_attempts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/base/repeated.h"

namespace megascale::agent {
namespace {

// Keeps the spans of as many of the newest steps as fit; if one does not, as many of its spans.
void Cut(size_t bytes_max, v1::SpanChunk* chunk) {
  int64_t newest = 0;
  for (const telemetry::v1::Span& span : chunk->spans()) newest = std::max(newest, span.step());
  auto& spans = *chunk->mutable_spans();
  for (int64_t steps = LastAttempts::kSteps; steps > 0; steps /= 2) {
    base::EraseIf(&spans, [&](const auto& span) { return span.step() <= newest - steps; });
    if (chunk->ByteSizeLong() <= bytes_max) return;
  }
  while (!spans.empty() && chunk->ByteSizeLong() > bytes_max)
    base::KeepNewest(spans.size() / 2, &spans);
}

void Cut(telemetry::v1::Evidence* evidence) {
  base::KeepNewest(LastAttempts::kCalls, evidence->mutable_completed());
  base::KeepNewest(LastAttempts::kCalls, evidence->mutable_running());
  base::KeepNewest(LastAttempts::kCalls, evidence->mutable_in_flight());
}

}  // namespace

void LastAttempts::Keep(const std::string& job_id, LastAttempt last) {
  // Half of the bytes are for spans, the other half for calls, which are few.
  const size_t share = kBytesMax / 2 / std::max<size_t>(1, last.spans.size());
  for (auto& [rank, chunk] : last.spans) Cut(share, &chunk);
  for (auto& [rank, evidence] : last.exchanges) Cut(&evidence);
  base::KeepNewest(kSamples, last.samples.mutable_samples());
  const auto is_same = [&](const auto& job) { return job.first == job_id; };
  jobs_.erase(std::remove_if(jobs_.begin(), jobs_.end(), is_same), jobs_.end());
  jobs_.emplace_back(job_id, std::move(last));
  if (jobs_.size() > kJobsMax) jobs_.pop_front();
}

const LastAttempt* LastAttempts::Find(const std::string& job_id, int64_t attempt) const {
  for (const auto& [id, last] : jobs_) {
    if (id == job_id && last.attempt == attempt) return &last;
  }
  return nullptr;
}

absl::StatusOr<v1::SpanChunk> LastAttempts::Spans(const v1::FetchSpans& fetch) const {
  const LastAttempt* last = Find(fetch.job_id(), fetch.attempt());
  if (last == nullptr || last->spans.count(fetch.rank()) == 0) {
    return absl::NotFoundError("the job does not run here");
  }
  v1::SpanChunk chunk = last->spans.at(fetch.rank());
  base::EraseIf(chunk.mutable_spans(),
                [&](const auto& span) { return span.step() < fetch.first_step(); });
  return chunk;
}

absl::StatusOr<telemetry::v1::Evidence> LastAttempts::Evidence(
    const v1::FetchEvidence& fetch) const {
  const LastAttempt* last = Find(fetch.job_id(), fetch.attempt());
  if (last == nullptr) return absl::NotFoundError("the job does not run here");
  if (fetch.kind() == telemetry::v1::EVIDENCE_KIND_METRICS) return last->samples;
  const auto found = last->exchanges.find(fetch.rank());
  if (fetch.kind() != telemetry::v1::EVIDENCE_KIND_EXCHANGES || found == last->exchanges.end()) {
    return absl::NotFoundError("its processes have ended");
  }
  return found->second;
}

}  // namespace megascale::agent
