// The part of AgentLoop that answers what the driver asks for: logs, spans and evidence.
#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "controlplane/agent/service/agent_loop.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace megascale::agent {
namespace {

constexpr int64_t kLogChunkBytesMax = 1 << 20;
constexpr size_t kStackProcessesMax = 8;

}  // namespace

void AgentLoop::AnswerFetchLog(const v1::FetchLog& fetch) {
  const ChildName name = {0, fetch.job_id(), fetch.attempt(), fetch.rank()};
  const auto piece = launch::ReadLog(LogNameOf(options_.log_directory, name), fetch.offset(),
                                     std::clamp<int64_t>(fetch.max_bytes(), 1, kLogChunkBytesMax));
  v1::AgentUp message;
  v1::LogChunk* chunk = message.mutable_log();
  chunk->set_request_id(fetch.request_id());
  chunk->set_code(static_cast<int>(piece.status().code()));
  if (piece.ok()) {
    chunk->set_data(piece->data);
    chunk->set_next_offset(piece->next_offset);
  }
  stream_->Send(std::move(message));
}

absl::StatusOr<v1::SpanChunk> AgentLoop::ReadSpans(const v1::FetchSpans& fetch) {
  if (fetch.clock_only()) return v1::SpanChunk();
  const auto memory = memory_.find(fetch.job_id());
  if (memory == memory_.end()) return last_attempts_.Spans(fetch);
  return memory->second->ReadSpans(fetch.attempt(), fetch.rank(), fetch.first_step());
}

void AgentLoop::AnswerFetchSpans(const v1::FetchSpans& fetch) {
  absl::StatusOr<v1::SpanChunk> spans = ReadSpans(fetch);
  const absl::StatusCode code = spans.status().code();
  v1::AgentUp message;
  v1::SpanChunk* chunk = message.mutable_spans();
  if (spans.ok()) *chunk = *std::move(spans);
  chunk->set_request_id(fetch.request_id());
  chunk->set_code(static_cast<int>(code));
  // What was kept says when it was read.
  if (chunk->monotonic_nanos() == 0) {
    chunk->set_monotonic_nanos(absl::ToInt64Nanoseconds(base::RealClock().Monotonic()));
  }
  stream_->Send(std::move(message));
}

absl::StatusOr<telemetry::v1::Evidence> AgentLoop::ReadEvidence(const v1::FetchEvidence& fetch) {
  const auto memory = memory_.find(fetch.job_id());
  if (memory == memory_.end()) return last_attempts_.Evidence(fetch);
  if (fetch.kind() == telemetry::v1::EVIDENCE_KIND_METRICS) {
    if (fetch.work_of_size() > 0) {
      return machine_.Work(fetch.job_id(), {fetch.work_of().begin(), fetch.work_of().end()});
    }
    if (fetch.as_series()) return machine_.Series(fetch.job_id());
    return machine_.Samples(fetch.only_ranks_of_job() ? fetch.job_id() : "");
  }
  if (fetch.kind() != telemetry::v1::EVIDENCE_KIND_EXCHANGES) {
    return absl::UnimplementedError(
        absl::StrCat("kind ", static_cast<int>(fetch.kind()),
                     ": this version of the agent does not know this kind of evidence"));
  }
  return memory->second->ReadExchanges(fetch.attempt(), fetch.rank(),
                                       base::RealClock().Monotonic());
}

void AgentLoop::AnswerFetchEvidence(const v1::FetchEvidence& fetch) {
  if (fetch.kind() != telemetry::v1::EVIDENCE_KIND_STACKS) {
    SendEvidence(fetch.request_id(), ReadEvidence(fetch));
  } else if (absl::Status started = StartStacks(fetch); !started.ok()) {
    SendEvidence(fetch.request_id(), std::move(started));
  }
}

absl::Status AgentLoop::StartStacks(const v1::FetchEvidence& fetch) {
  const auto child = std::find_if(children_.begin(), children_.end(), [&](const auto& item) {
    const ChildName& name = item.second->name();
    return name.job_id == fetch.job_id() && name.attempt == fetch.attempt() &&
           name.rank == fetch.rank();
  });
  if (fetch.rank() < 0 || child == children_.end()) {
    return absl::NotFoundError("its process does not run here");
  }
  if (stack_requests_.size() >= kStackProcessesMax) {
    return absl::ResourceExhaustedError("many stacks are being read; repeat this in a second");
  }
  const ChildName name = {++last_stack_process_, kStackLogs, 0, kStackRank};
  ASSIGN_OR_RETURN(std::unique_ptr<ChildProcess> reader,
                   ChildProcess::Start(keeper_, name, options_.log_directory, {}));
  link::v1::StackAssignment assignment;
  assignment.set_pid(child->second->pid());
  reader->Send(assignment, {}).IgnoreError();  // its end is reported
  children_[name.process_id] = std::move(reader);
  stack_requests_[name.process_id] = fetch.request_id();
  return absl::OkStatus();
}

void AgentLoop::OnStacks(int64_t process_id, const v1::EvidenceChunk& chunk) {
  const auto request = stack_requests_.find(process_id);
  if (request == stack_requests_.end()) return;  // it is answered
  const auto code = static_cast<absl::StatusCode>(chunk.code());
  SendEvidence(request->second, code == absl::StatusCode::kOk
                                    ? absl::StatusOr<telemetry::v1::Evidence>(chunk.evidence())
                                    : absl::Status(code, chunk.message()));
  stack_requests_.erase(request);
}

void AgentLoop::SendEvidence(const std::string& request_id,
                             absl::StatusOr<telemetry::v1::Evidence> evidence) {
  v1::AgentUp message;
  v1::EvidenceChunk* chunk = message.mutable_evidence();
  chunk->set_request_id(request_id);
  chunk->set_code(static_cast<int>(evidence.status().code()));
  if (evidence.ok()) {
    *chunk->mutable_evidence() = *std::move(evidence);
  } else {
    chunk->set_message(std::string(evidence.status().message()));
  }
  telemetry::v1::Evidence* told = chunk->mutable_evidence();
  if (told->monotonic_nanos() == 0)
    told->set_monotonic_nanos(absl::ToInt64Nanoseconds(base::RealClock().Monotonic()));
  stream_->Send(std::move(message));
}

void AgentLoop::AnswerFetchDataFiles(const v1::FetchDataFiles& fetch) {
  v1::AgentUp answer;
  *answer.mutable_data_files() = core_.DataFilesOf(fetch);
  stream_->Send(std::move(answer));
}

void AgentLoop::OnDataFiles(const v1::DataFiles& files) {
  int64_t process_id = 0;
  if (!absl::SimpleAtoi(files.request_id(), &process_id)) return;
  link::v1::ToHost message;
  *message.mutable_data_files() = files;
  SendToChild(process_id, message);
}

}  // namespace megascale::agent
