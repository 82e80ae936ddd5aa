#include "runtime/comm/store/embedded_store.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::comm {
namespace {

using megascale::agent::v1::StoreReply;

// Approximate cost of an entry in addition to its bytes.
constexpr size_t kEntryBytes = 128;

StoreReply MakeReply(const std::string& request_id, const absl::Status& status) {
  StoreReply reply;
  reply.set_request_id(request_id);
  reply.set_code(static_cast<int>(status.code()));
  reply.set_message(std::string(status.message()));
  return reply;
}

absl::Status Ended(const std::string& job_id, int64_t attempt) {
  return absl::AbortedError(
      absl::StrCat("attempt ", attempt, " of job ", job_id, " has ended; join the next one"));
}

}  // namespace

void EmbeddedStore::Handle(const StoreRequest& request, Reply reply) {
  Outgoing outgoing;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    HandleLocked(request, std::move(reply), outgoing);
  }
  for (auto& [send, message] : outgoing) send(message);
}

void EmbeddedStore::HandleLocked(const StoreRequest& request, Reply reply, Outgoing& outgoing) {
  StoreReply answer;
  absl::StatusOr<Attempt*> attempt = FindAttempt(request);
  absl::Status status = attempt.status();
  if (status.ok()) {
    switch (request.operation()) {
      case StoreRequest::OPERATION_SET:
        status = Put(**attempt, request.key(), request.value());
        if (status.ok()) AnswerWaiters(**attempt, request.key(), outgoing);
        break;
      case StoreRequest::OPERATION_GET:
        status = Get(**attempt, request.key(), answer);
        break;
      case StoreRequest::OPERATION_WAIT:
        status = Get(**attempt, request.key(), answer);
        if (!absl::IsNotFound(status)) break;
        status = AddWaiter(**attempt, request, reply);
        if (status.ok()) return;  // answered later
        break;
      case StoreRequest::OPERATION_ADD:
        status = Add(**attempt, request, answer);
        if (status.ok()) AnswerWaiters(**attempt, request.key(), outgoing);
        break;
      default:
        status = absl::InvalidArgumentError(
            absl::StrCat("the store knows no operation ", request.operation()));
    }
  }
  answer.MergeFrom(MakeReply(request.request_id(), status));
  outgoing.emplace_back(std::move(reply), std::move(answer));
}

absl::StatusOr<EmbeddedStore::Attempt*> EmbeddedStore::FindAttempt(const StoreRequest& request) {
  if (request.key().size() > options_.key_bytes_max ||
      request.request_id().size() > options_.key_bytes_max ||
      request.value().size() > options_.value_bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a store request for key ", request.key().substr(0, 64), " is too large: at most ",
        options_.key_bytes_max, " bytes of key and ", options_.value_bytes_max, " of value"));
  }
  size_t num_attempts = 0;
  for (auto& [id, job] : jobs_) {
    num_attempts += job.attempts.size();
    if (id != request.job_id()) continue;
    if (request.attempt() < job.oldest_attempt) return Ended(id, request.attempt());
    const auto found = job.attempts.find(request.attempt());
    if (found != job.attempts.end()) return &found->second;
  }
  if (num_attempts >= options_.num_attempts_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the store serves ", num_attempts, " attempts and takes no more"));
  }
  return &jobs_[request.job_id()].attempts[request.attempt()];
}

absl::Status EmbeddedStore::Reserve(Attempt& attempt, size_t more_bytes, size_t fewer_bytes) const {
  const size_t size_bytes = attempt.size_bytes + more_bytes - fewer_bytes;
  if (more_bytes > fewer_bytes && size_bytes > options_.attempt_bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat("the store holds ", attempt.size_bytes,
                                                     " bytes for this attempt, at most ",
                                                     options_.attempt_bytes_max));
  }
  attempt.size_bytes = size_bytes;
  return absl::OkStatus();
}

absl::Status EmbeddedStore::Put(Attempt& attempt, const std::string& key, std::string value) {
  const auto found = attempt.values.find(key);
  const bool is_new = found == attempt.values.end();
  const size_t before = is_new ? 0 : kEntryBytes + key.size() + found->second.size();
  RETURN_IF_ERROR(Reserve(attempt, kEntryBytes + key.size() + value.size(), before));
  attempt.values[key] = std::move(value);
  return absl::OkStatus();
}

absl::Status EmbeddedStore::Get(const Attempt& attempt, const std::string& key,
                                StoreReply& answer) {
  const auto found = attempt.values.find(key);
  if (found == attempt.values.end()) {
    return absl::NotFoundError(absl::StrCat("the store has no key ", key));
  }
  answer.set_value(found->second);
  return absl::OkStatus();
}

absl::Status EmbeddedStore::Add(Attempt& attempt, const StoreRequest& request, StoreReply& answer) {
  const auto done = attempt.additions.find(request.request_id());
  if (done != attempt.additions.end()) {
    answer.set_sum(done->second);
    return absl::OkStatus();
  }
  int64_t sum = 0;
  const auto found = attempt.values.find(request.key());
  if (found != attempt.values.end() && !absl::SimpleAtoi(found->second, &sum)) {
    return absl::InvalidArgumentError(
        absl::StrCat("key ", request.key(), " holds no number to add to"));
  }
  if (__builtin_add_overflow(sum, request.amount(), &sum)) {
    return absl::InvalidArgumentError(
        absl::StrCat("adding ", request.amount(), " to key ", request.key(), " overflows 64 bits"));
  }
  RETURN_IF_ERROR(Reserve(attempt, kEntryBytes + request.request_id().size(), 0));
  RETURN_IF_ERROR(Put(attempt, request.key(), absl::StrCat(sum)));
  attempt.additions[request.request_id()] = sum;
  answer.set_sum(sum);
  return absl::OkStatus();
}

absl::Status EmbeddedStore::AddWaiter(Attempt& attempt, const StoreRequest& request,
                                      const Reply& reply) {
  const auto found = attempt.waiters.find(request.request_id());
  if (found == attempt.waiters.end()) {
    RETURN_IF_ERROR(Reserve(attempt, WaiterBytes(request.request_id(), request.key()), 0));
  }
  attempt.waiters[request.request_id()] = {request.key(), reply};
  return absl::OkStatus();
}

size_t EmbeddedStore::WaiterBytes(const std::string& request_id, const std::string& key) {
  return kEntryBytes + request_id.size() + key.size();
}

void EmbeddedStore::AnswerWaiters(Attempt& attempt, const std::string& key, Outgoing& outgoing) {
  for (auto it = attempt.waiters.begin(); it != attempt.waiters.end();) {
    if (it->second.key != key) {
      ++it;
      continue;
    }
    StoreReply answer = MakeReply(it->first, absl::OkStatus());
    answer.set_value(attempt.values[key]);
    attempt.size_bytes -= WaiterBytes(it->first, key);
    outgoing.emplace_back(std::move(it->second.reply), std::move(answer));
    it = attempt.waiters.erase(it);
  }
}

void EmbeddedStore::Cancel(Attempt& attempt, const absl::Status& reason, Outgoing& outgoing) {
  for (auto& [request_id, waiter] : attempt.waiters) {
    outgoing.emplace_back(std::move(waiter.reply), MakeReply(request_id, reason));
  }
}

void EmbeddedStore::DropAttemptsBefore(const std::string& job_id, int64_t attempt) {
  Outgoing outgoing;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Job& job = jobs_[job_id];
    job.oldest_attempt = std::max(job.oldest_attempt, attempt);
    const auto end = job.attempts.lower_bound(attempt);
    for (auto it = job.attempts.begin(); it != end; ++it) {
      Cancel(it->second, Ended(job_id, it->first), outgoing);
    }
    job.attempts.erase(job.attempts.begin(), end);
  }
  for (auto& [send, message] : outgoing) send(message);
}

void EmbeddedStore::DropJob(const std::string& job_id) {
  Outgoing outgoing;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto job = jobs_.find(job_id);
    if (job == jobs_.end()) return;
    for (auto& [number, attempt] : job->second.attempts) {
      Cancel(attempt, Ended(job_id, number), outgoing);
    }
    jobs_.erase(job);
  }
  for (auto& [send, message] : outgoing) send(message);
}

}  // namespace megascale::comm
