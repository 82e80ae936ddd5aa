#include "runtime/comm/store/link_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::comm {
namespace {
// The clock has no infinite wait.
constexpr absl::Duration kCallMax = absl::Hours(24);
}  // namespace

LinkStore::LinkStore(LinkStoreOptions options, SendRequest send)
    : options_(std::move(options)), send_(std::move(send)) {}

absl::Status LinkStore::Set(const std::string& key, const std::string& value) {
  Request request = NewRequest(Request::OPERATION_SET, key);
  request.set_value(value);
  return Call(request, options_.call_timeout).status();
}

absl::StatusOr<std::string> LinkStore::Get(const std::string& key) {
  ASSIGN_OR_RETURN(StoreReply reply,
                   Call(NewRequest(Request::OPERATION_GET, key), options_.call_timeout));
  return std::move(*reply.mutable_value());
}

absl::StatusOr<int64_t> LinkStore::Add(const std::string& key, int64_t amount,
                                       const std::string& request_id) {
  Request request = NewRequest(Request::OPERATION_ADD, key);
  request.set_request_id(absl::StrCat(options_.client, "/add/", request_id));
  request.set_amount(amount);
  ASSIGN_OR_RETURN(const StoreReply reply, Call(request, options_.call_timeout));
  return reply.sum();
}

absl::StatusOr<std::string> LinkStore::Wait(const std::string& key, absl::Duration timeout) {
  ASSIGN_OR_RETURN(StoreReply reply, Call(NewRequest(Request::OPERATION_WAIT, key), timeout));
  return std::move(*reply.mutable_value());
}

LinkStore::Request LinkStore::NewRequest(Request::Operation operation, const std::string& key) {
  Request request;
  request.set_operation(operation);
  request.set_job_id(options_.job_id);
  request.set_attempt(options_.attempt);
  request.set_key(key);
  std::lock_guard<std::mutex> lock(mutex_);
  request.set_request_id(absl::StrCat(options_.client, "/", num_requests_++));
  return request;
}

absl::StatusOr<LinkStore::StoreReply> LinkStore::Call(const Request& request,
                                                      absl::Duration timeout) {
  const std::string& id = request.request_id();
  const std::string what =
      absl::StrCat("store ", Request::Operation_Name(request.operation()), " ", request.key());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_.ok()) return base::Annotate(closed_, what);
    if (!calls_.emplace(id, std::nullopt).second) {
      return absl::FailedPreconditionError(absl::StrCat(what, ": request ", id, " is running"));
    }
  }
  const absl::Status sent = send_(request);
  std::unique_lock<std::mutex> lock(mutex_);
  const auto call = calls_.find(id);
  const auto is_over = [&]() { return call->second.has_value() || !closed_.ok(); };
  if (sent.ok()) {
    changed_.wait_for(lock, absl::ToChronoNanoseconds(std::min(timeout, kCallMax)), is_over);
  }
  const std::optional<StoreReply> reply = std::move(call->second);
  calls_.erase(call);
  if (!sent.ok()) return base::Annotate(sent, what);
  if (reply.has_value()) {
    if (reply->code() == 0) return *reply;
    return absl::Status(static_cast<absl::StatusCode>(reply->code()),
                        absl::StrCat(what, ": ", reply->message()));
  }
  if (!closed_.ok()) return base::Annotate(closed_, what);
  return absl::DeadlineExceededError(
      absl::StrCat(what, ": no answer within ", absl::FormatDuration(timeout)));
}

void LinkStore::OnReply(const StoreReply& reply) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto call = calls_.find(reply.request_id());
  if (call != calls_.end()) call->second = reply;
  changed_.notify_all();
}

void LinkStore::Close(const absl::Status& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_.ok()) closed_ = reason;
  changed_.notify_all();
}

}  // namespace megascale::comm
