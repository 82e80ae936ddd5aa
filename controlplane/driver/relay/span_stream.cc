#include "controlplane/driver/relay/span_stream.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controlplane/trace/job_spans.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;

// A machine's clock, in nanoseconds.
struct ClockReading {
  int64_t ahead = 0;  // of this process's
  int64_t error = 0;  // at most
};

class SpanStream {
 public:
  SpanStream(const control::StreamSpansRequest& request, const SpanStreamPorts& ports)
      : request_(request), ports_(ports), wanted_(request.ranks().begin(), request.ranks().end()) {}

  absl::Status Run() {
    ASSIGN_OR_RETURN(const control::Job job, ports_.job());
    const bool has_ended = job.has_ended_at() && !ports_.asks_ended;
    if (has_ended && ports_.saved != nullptr) {
      if (const auto saved = ports_.saved(job); saved.ok()) return EmitSaved(*saved);
    }
    RETURN_IF_ERROR(CheckRuns(job));
    ASSIGN_OR_RETURN(const control::GetClusterResponse cluster, ports_.cluster());
    for (const control::NodeView& node : cluster.nodes()) {
      machines_[node.node_id()] = node.machine_id();
    }
    for (const control::RankView& rank : job.ranks()) {
      if (!IsWanted(rank.status().rank())) continue;
      if (!ports_.emit(Read(job, rank))) return absl::CancelledError("the reader is gone");
    }
    return absl::OkStatus();
  }

 private:
  bool IsWanted(int rank) const { return wanted_.empty() || wanted_.count(rank) > 0; }

  absl::Status EmitSaved(const trace::EvidenceFile& saved) const {
    for (control::StreamSpansResponse response : saved.spans) {
      if (!IsWanted(response.rank())) continue;
      auto& spans = *response.mutable_spans();
      spans.erase(
          std::remove_if(spans.begin(), spans.end(),
                         [&](const auto& span) { return span.step() < request_.first_step(); }),
          spans.end());
      if (!ports_.emit(response)) return absl::CancelledError("the reader is gone");
    }
    return absl::OkStatus();
  }

  absl::Status CheckRuns(const control::Job& job) const {
    if (job.has_ended_at() && !ports_.asks_ended) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", job.job_id(), ": has ended (", job.reason(),
                       "); what its ranks did is kept only while it runs"));
    }
    if (job.attempt() == 0 || job.ranks_size() == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", job.job_id(), ": none of its ranks has begun (", job.reason(),
                       "); repeat this once it runs"));
    }
    return absl::OkStatus();
  }

  control::StreamSpansResponse Read(const control::Job& job, const control::RankView& view) {
    const std::string& node = view.node_id();
    const int rank = view.status().rank();
    control::StreamSpansResponse response;
    response.set_rank(rank);
    response.set_attempt(job.attempt());
    response.set_node_id(node);
    agent::FetchSpans fetch;
    fetch.set_job_id(job.job_id());
    fetch.set_attempt(job.attempt());
    fetch.set_rank(rank);
    fetch.set_first_step(request_.first_step());
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

  // A node that did not answer is not asked again, because each question would cost a timeout.
  absl::StatusOr<agent::SpanChunk> Fetch(const std::string& node, const agent::FetchSpans& fetch) {
    const auto away = away_.find(node);
    if (away != away_.end()) return away->second;
    absl::StatusOr<agent::SpanChunk> chunk = ports_.fetch(node, fetch);
    if (absl::IsUnavailable(chunk.status()) || absl::IsDeadlineExceeded(chunk.status())) {
      away_[node] = chunk.status();
    }
    return chunk;
  }

  absl::StatusOr<ClockReading> ClockOf(const std::string& node) {
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

  const control::StreamSpansRequest& request_;
  const SpanStreamPorts& ports_;
  const std::set<int> wanted_;                   // empty: all ranks
  std::map<std::string, std::string> machines_;  // by node
  std::map<std::string, ClockReading> clocks_;   // by machine
  std::map<std::string, absl::Status> away_;     // by node
};

}  // namespace

absl::Status StreamSpans(const control::StreamSpansRequest& request, const SpanStreamPorts& ports) {
  return SpanStream(request, ports).Run();
}

}  // namespace megascale::driver
