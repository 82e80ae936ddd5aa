#include "gpu/comm/call_watch.h"

#include "absl/strings/str_cat.h"
#include "gpu/cuda/cuda_status.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::cuda {

std::string Describe(const Call& call) {
  std::string text = absl::StrCat(comm::Name(call.operation), " ", call.sequence);
  if (call.peer_rank >= 0) {
    absl::StrAppend(&text, call.operation == comm::Operation::kSend ? " to" : " from", " rank ",
                    call.peer_rank);
  }
  return absl::StrCat(text, " (instruction ", call.instruction_id, ", ", call.bytes, " bytes)");
}

CallWatch::~CallWatch() {
  // CUDA frees an event once the work before it has ended.
  for (const cudaEvent_t event : created_) (void)cuda_.cudaEventDestroy(event);
}

absl::StatusOr<cudaEvent_t> CallWatch::TakeEvent() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (unused_.empty()) {
    cudaEvent_t event = nullptr;
    RETURN_IF_ERROR(
        MEGASCALE_CUDA_CALL(cuda_, cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
    created_.push_back(event);
    return event;
  }
  const cudaEvent_t event = unused_.back();
  unused_.pop_back();
  return event;
}

absl::Status CallWatch::Begin(const Call& call) {
  Entry entry = {.call = call};
  ASSIGN_OR_RETURN(entry.begin, TakeEvent());
  ASSIGN_OR_RETURN(entry.end, TakeEvent());
  RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda_, cudaEventRecord(entry.begin, stream_)));
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.push_back(entry);
  return absl::OkStatus();
}

absl::Status CallWatch::End() {
  cudaEvent_t end = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    MEGASCALE_CHECK(!entries_.empty() && !entries_.back().has_end);
    end = entries_.back().end;
  }
  RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda_, cudaEventRecord(end, stream_)));
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.back().has_end = true;
  return absl::OkStatus();
}

absl::StatusOr<bool> CallWatch::HasPassed(cudaEvent_t event) const {
  const cudaError_t error = cuda_.cudaEventQuery(event);
  if (error == cudaErrorNotReady) return false;
  RETURN_IF_ERROR(ToStatus(cuda_, error, "cudaEventQuery"));
  return true;
}

absl::StatusOr<std::optional<CallWatch::Running>> CallWatch::Look(absl::Duration now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (!entries_.empty()) {
    Entry& oldest = entries_.front();
    if (!oldest.since.has_value()) {
      ASSIGN_OR_RETURN(const bool has_begun, HasPassed(oldest.begin));
      if (!has_begun) return std::nullopt;
      oldest.since = now;
    }
    bool has_ended = false;
    if (oldest.has_end) {
      ASSIGN_OR_RETURN(has_ended, HasPassed(oldest.end));
    }
    if (!has_ended) return Running{oldest.call, *oldest.since};
    unused_.push_back(oldest.begin);
    unused_.push_back(oldest.end);
    entries_.pop_front();
  }
  return std::nullopt;
}

std::optional<Call> CallWatch::Oldest() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (entries_.empty()) return std::nullopt;
  return entries_.front().call;
}

}  // namespace megascale::cuda
