#include "runtime/comm/store/embedded_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/base/work/counted_work.h"
#include "runtime/comm/store/store_request.h"

namespace megascale::comm {
namespace {

using megascale::agent::v1::StoreReply;

// Approximate cost of an entry in addition to its bytes.
constexpr size_t kEntryBytes = 128;

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
        status = Put(**attempt, request.key(), request.value(), outgoing);
        break;
      case StoreRequest::OPERATION_GET:
        status = Get(**attempt, request.key(), answer);
        break;
      case StoreRequest::OPERATION_WAIT:
        status = Wait(**attempt, request, reply, outgoing);
        if (status.ok()) return;  // answered, or later
        break;
      case StoreRequest::OPERATION_ADD:
        status = Add(**attempt, request, answer, outgoing);
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
  RETURN_IF_ERROR(CheckSizes(request, options_.key_bytes_max, options_.value_bytes_max));
  if (const auto job = jobs_.find(request.job_id()); job != jobs_.end()) {
    if (request.attempt() < job->second.oldest_attempt) {
      return Ended(request.job_id(), request.attempt());
    }
    const auto found = job->second.attempts.find(request.attempt());
    if (found != job->second.attempts.end()) return &found->second;
  }
  if (num_attempts_ >= options_.num_attempts_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the store serves ", num_attempts_, " attempts and takes no more"));
  }
  ++num_attempts_;
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

const EmbeddedStore::Entry* EmbeddedStore::Attempt::Find(const std::string& key) const {
  const auto found = index.find(key);
  return found == index.end() ? nullptr : &entries[found->second];
}

absl::StatusOr<uint32_t> EmbeddedStore::IndexOf(Attempt& attempt, const std::string& key) const {
  const auto found = attempt.index.find(key);
  if (found != attempt.index.end()) return found->second;
  RETURN_IF_ERROR(Reserve(attempt, kEntryBytes + 2 * key.size(), 0));
  const auto index = static_cast<uint32_t>(attempt.entries.size());
  attempt.index.emplace(key, index);
  attempt.entries.emplace_back().key = key;
  return index;
}

absl::Status EmbeddedStore::Put(Attempt& attempt, const std::string& key, std::string value,
                                Outgoing& outgoing) const {
  ASSIGN_OR_RETURN(const uint32_t index, IndexOf(attempt, key));
  Entry& entry = attempt.entries[index];
  RETURN_IF_ERROR(Reserve(attempt, value.size(), entry.value.size()));
  entry.value = std::move(value);
  entry.is_set = true;
  AnswerWaiters(attempt, entry, outgoing);
  return absl::OkStatus();
}

absl::Status EmbeddedStore::Get(const Attempt& attempt, const std::string& key,
                                StoreReply& answer) {
  const Entry* found = attempt.Find(key);
  if (found == nullptr || !found->is_set) {
    return absl::NotFoundError(absl::StrCat("the store has no key ", key));
  }
  answer.set_value(found->value);
  return absl::OkStatus();
}

absl::Status EmbeddedStore::Add(Attempt& attempt, const StoreRequest& request, StoreReply& answer,
                                Outgoing& outgoing) const {
  const auto done = attempt.additions.find(request.request_id());
  if (done != attempt.additions.end()) {
    answer.set_sum(done->second);
    return absl::OkStatus();
  }
  int64_t sum = 0;
  const Entry* found = attempt.Find(request.key());
  if (found != nullptr && found->is_set && !absl::SimpleAtoi(found->value, &sum)) {
    return absl::InvalidArgumentError(
        absl::StrCat("key ", request.key(), " holds no number to add to"));
  }
  if (__builtin_add_overflow(sum, request.amount(), &sum)) {
    return absl::InvalidArgumentError(
        absl::StrCat("adding ", request.amount(), " to key ", request.key(), " overflows 64 bits"));
  }
  RETURN_IF_ERROR(Reserve(attempt, kEntryBytes + request.request_id().size(), 0));
  RETURN_IF_ERROR(Put(attempt, request.key(), absl::StrCat(sum), outgoing));
  attempt.additions[request.request_id()] = sum;
  answer.set_sum(sum);
  return absl::OkStatus();
}

absl::StatusOr<bool> EmbeddedStore::Replace(Attempt& attempt, const StoreRequest& request,
                                            const Reply& reply) {
  const auto found = attempt.waiters.find(request.request_id());
  if (found == attempt.waiters.end()) return false;
  Waiter& waiter = *found->second;
  bool is_same =
      waiter.has_many == !request.keys().empty() && waiter.keys.size() == NumKeys(request);
  for (size_t i = 0; i < waiter.keys.size() && is_same; ++i) {
    is_same = attempt.entries[waiter.keys[i]].key == KeyOf(request, i);
  }
  if (!is_same) {
    return absl::InvalidArgumentError(
        absl::StrCat("request ", request.request_id(), " waits for other keys already"));
  }
  waiter.reply = reply;
  return true;
}

absl::Status EmbeddedStore::Wait(Attempt& attempt, const StoreRequest& request, const Reply& reply,
                                 Outgoing& outgoing) const {
  ASSIGN_OR_RETURN(const bool is_repeated, Replace(attempt, request, reply));
  if (is_repeated) return absl::OkStatus();
  base::CountWork(NumKeys(request));
  auto waiter = std::make_unique<Waiter>();
  waiter->request_id = request.request_id();
  waiter->has_many = !request.keys().empty();
  waiter->reply = reply;
  for (size_t i = 0; i < NumKeys(request); ++i) {
    ASSIGN_OR_RETURN(const uint32_t index, IndexOf(attempt, KeyOf(request, i)));
    waiter->keys.push_back(index);
    if (!attempt.entries[index].is_set) ++waiter->num_missing;
  }
  if (waiter->num_missing == 0) {
    outgoing.emplace_back(reply, ValuesFor(attempt, *waiter));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Reserve(attempt, BytesOf(*waiter), 0));
  for (const uint32_t index : waiter->keys) {
    Entry& entry = attempt.entries[index];
    if (!entry.is_set) entry.waiters.push_back(waiter.get());
  }
  attempt.waiters.emplace(request.request_id(), std::move(waiter));
  return absl::OkStatus();
}

size_t EmbeddedStore::BytesOf(const Waiter& waiter) {
  constexpr size_t kKeyBytes = 12;  // its index here, and a pointer in its entry
  return kEntryBytes + 2 * waiter.request_id.size() + waiter.keys.size() * kKeyBytes;
}

EmbeddedStore::StoreReply EmbeddedStore::ValuesFor(const Attempt& attempt,
                                                   const Waiter& waiter) const {
  StoreReply answer = MakeReply(waiter.request_id, absl::OkStatus());
  if (!waiter.has_many) {
    answer.set_value(attempt.entries[waiter.keys[0]].value);
    return answer;
  }
  base::CountWork(waiter.keys.size());
  size_t bytes = 0;
  for (const uint32_t index : waiter.keys) bytes += attempt.entries[index].value.size();
  const absl::Status fits = CheckReplySize(waiter.keys.size(), bytes, options_.reply_bytes_max);
  if (!fits.ok()) return MakeReply(waiter.request_id, fits);
  answer.mutable_values()->Reserve(static_cast<int>(waiter.keys.size()));
  for (const uint32_t index : waiter.keys) answer.add_values(attempt.entries[index].value);
  return answer;
}

// The key is set now: nobody will wait for it again.
void EmbeddedStore::AnswerWaiters(Attempt& attempt, Entry& entry, Outgoing& outgoing) const {
  base::CountWork(1 + entry.waiters.size());
  for (Waiter* waiter : std::exchange(entry.waiters, {})) {
    if (--waiter->num_missing > 0) continue;
    outgoing.emplace_back(std::move(waiter->reply), ValuesFor(attempt, *waiter));
    attempt.size_bytes -= BytesOf(*waiter);
    attempt.waiters.erase(waiter->request_id);
  }
}

void EmbeddedStore::Drop(std::map<int64_t, Attempt>& attempts,
                         std::map<int64_t, Attempt>::iterator end, const std::string& job_id,
                         Outgoing& outgoing) {
  for (auto it = attempts.begin(); it != end; it = attempts.erase(it)) {
    const absl::Status why = Ended(job_id, it->first);
    for (auto& [request_id, waiter] : it->second.waiters) {
      outgoing.emplace_back(std::move(waiter->reply), MakeReply(request_id, why));
    }
    --num_attempts_;
  }
}

void EmbeddedStore::DropAttemptsBefore(const std::string& job_id, int64_t attempt) {
  Outgoing outgoing;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Job& job = jobs_[job_id];
    job.oldest_attempt = std::max(job.oldest_attempt, attempt);
    Drop(job.attempts, job.attempts.lower_bound(attempt), job_id, outgoing);
  }
  for (auto& [send, message] : outgoing) send(message);
}

void EmbeddedStore::DropJob(const std::string& job_id) {
  Outgoing outgoing;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto job = jobs_.find(job_id);
    if (job == jobs_.end()) return;
    Drop(job->second.attempts, job->second.attempts.end(), job_id, outgoing);
    jobs_.erase(job);
  }
  for (auto& [send, message] : outgoing) send(message);
}

}  // namespace megascale::comm
