#include "controlplane/driver/relay/span_stream.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/relay/ended_job.h"
#include "controlplane/trace/job_spans.h"
#include "runtime/base/repeated.h"
#include "runtime/base/status.h"

namespace megascale::driver {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;

namespace {

absl::Status EmitSaved(const trace::EvidenceFile& saved, int64_t first_step,
                       const std::set<int>& wanted, const SpanStream::Emit& emit) {
  for (control::StreamSpansResponse response : saved.spans) {
    if (!wanted.empty() && wanted.count(response.rank()) == 0) continue;
    base::EraseIf(response.mutable_spans(),
                  [&](const auto& span) { return span.step() < first_step; });
    if (!emit(response)) return absl::CancelledError("the reader is gone");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SpanStream::Read(const control::StreamSpansRequest& request, const Emit& emit) {
  const std::set<int> wanted(request.ranks().begin(), request.ranks().end());
  if (!job_.has_value()) {
    ASSIGN_OR_RETURN(control::Job job, ports_.job());
    if (const auto saved = SavedOf(job, ports_); saved.has_value()) {
      return EmitSaved(*saved, request.first_step(), wanted, emit);
    }
    RETURN_IF_ERROR(CheckRuns(job, ports_.asks_ended, "what its ranks did"));
    ASSIGN_OR_RETURN(const control::GetClusterResponse cluster, ports_.cluster());
    for (const control::NodeView& node : cluster.nodes()) {
      machines_[node.node_id()] = node.machine_id();
    }
    job_ = std::move(job);
  }
  for (const control::RankView& rank : job_->ranks()) {
    if (!wanted.empty() && wanted.count(rank.status().rank()) == 0) continue;
    if (!emit(ReadRank(rank, request.first_step()))) {
      return absl::CancelledError("the reader is gone");
    }
  }
  return absl::OkStatus();
}

control::StreamSpansResponse SpanStream::ReadRank(const control::RankView& view,
                                                  int64_t first_step) {
  const std::string& node = view.node_id();
  const int rank = view.status().rank();
  control::StreamSpansResponse response;
  response.set_rank(rank);
  response.set_attempt(job_->attempt());
  response.set_node_id(node);
  agent::FetchSpans fetch;
  fetch.set_job_id(job_->job_id());
  fetch.set_attempt(job_->attempt());
  fetch.set_rank(rank);
  fetch.set_first_step(first_step);
  const absl::StatusOr<ClockReading> clock = ClockOf(node);
  absl::StatusOr<agent::SpanChunk> chunk = clock.ok() ? Fetch(node, fetch) : clock.status();
  if (!chunk.ok()) {
    response.set_error(std::string(chunk.status().message()));
    return response;
  }
  *response.mutable_spans() = std::move(*chunk->mutable_spans());
  response.set_num_lost(chunk->num_lost());
  response.set_read_nanos(chunk->monotonic_nanos());
  response.set_clock_ahead_nanos(clock->ahead);
  response.set_clock_error_nanos(clock->error);
  return response;
}

absl::StatusOr<agent::SpanChunk> SpanStream::Fetch(const std::string& node,
                                                   const agent::FetchSpans& fetch) {
  const auto away = away_.find(node);
  if (away != away_.end()) return away->second;
  absl::StatusOr<agent::SpanChunk> chunk = ports_.fetch(node, fetch);
  if (absl::IsUnavailable(chunk.status()) || absl::IsDeadlineExceeded(chunk.status())) {
    away_[node] = chunk.status();
  }
  return chunk;
}

absl::StatusOr<SpanStream::ClockReading> SpanStream::ClockOf(const std::string& node) {
  // An agent whose machine is unknown shares its clock with no other agent.
  const std::string& machine = machines_[node];
  const std::string key = machine.empty() ? absl::StrCat("node ", node) : machine;
  const auto known = clocks_.find(key);
  if (known != clocks_.end()) return known->second;
  agent::FetchSpans question;
  question.set_clock_only(true);
  std::optional<ClockReading> best;
  for (int i = 0; i < kClockQuestions; ++i) {
    const absl::Duration asked = ports_.now();
    ASSIGN_OR_RETURN(const agent::SpanChunk answer, Fetch(node, question));
    const absl::Duration answered = ports_.now();
    if (answer.monotonic_nanos() < 0 || answer.monotonic_nanos() > trace::kClockNanosMax) {
      return absl::InternalError(
          absl::StrCat("node ", node, ": says that its monotonic clock shows ",
                       answer.monotonic_nanos(), " ns; expected 0 to ", trace::kClockNanosMax));
    }
    const int64_t error = absl::ToInt64Nanoseconds((answered - asked) / 2);
    if (best.has_value() && error >= best->error) continue;
    best = {answer.monotonic_nanos() - absl::ToInt64Nanoseconds(asked) - error, error};
  }
  return clocks_[key] = *best;
}

absl::Status StreamSpans(const control::StreamSpansRequest& request, const SpanStreamPorts& ports) {
  return SpanStream(ports).Read(request, ports.emit);
}

}  // namespace megascale::driver
