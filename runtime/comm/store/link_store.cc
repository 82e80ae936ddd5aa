#include "runtime/comm/store/link_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace megascale::comm {
namespace {
// The clock has no infinite wait.
constexpr absl::Duration kCallMax = absl::Hours(24);

// What people read of a request.
std::string Name(const megascale::agent::v1::StoreRequest& request) {
  const std::string what = absl::StrCat(
      "store ", megascale::agent::v1::StoreRequest::Operation_Name(request.operation()));
  if (request.keys().empty()) return absl::StrCat(what, " ", request.key());
  return absl::StrCat(what, " of ", request.keys_size(), " keys from ", request.keys(0), " to ",
                      request.keys(request.keys_size() - 1));
}
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

absl::StatusOr<std::vector<std::string>> LinkStore::WaitAll(const std::vector<std::string>& keys,
                                                            absl::Duration timeout) {
  if (keys.empty()) return std::vector<std::string>();
  Request request = NewRequest(Request::OPERATION_WAIT, "");
  for (const std::string& key : keys) request.add_keys(key);
  ASSIGN_OR_RETURN(StoreReply reply, Call(request, timeout));
  const auto num_values = static_cast<size_t>(reply.values_size());
  if (num_values != keys.size()) {
    return absl::InternalError(absl::StrCat(
        Name(request), ": the answer has ", num_values, " values",
        num_values < keys.size() ? absl::StrCat(" and none for ", keys[num_values]) : ""));
  }
  return std::vector<std::string>(std::make_move_iterator(reply.mutable_values()->begin()),
                                  std::make_move_iterator(reply.mutable_values()->end()));
}

absl::StatusOr<std::vector<std::optional<std::string>>> LinkStore::GetAll(
    const std::vector<std::string>& keys) {
  const absl::Duration deadline = base::RealClock().Monotonic() + options_.call_timeout;
  std::vector<Request> begun;
  absl::Status status;
  for (const std::string& key : keys) {
    begun.push_back(NewRequest(Request::OPERATION_GET, key));
    status = Begin(begun.back());
    if (status.ok()) continue;
    begun.pop_back();
    break;
  }
  std::vector<std::optional<std::string>> values;
  for (const Request& request : begun) {
    absl::StatusOr<StoreReply> reply = Finish(request, deadline - base::RealClock().Monotonic());
    values.emplace_back();
    if (reply.ok()) {
      values.back() = std::move(*reply->mutable_value());
    } else if (!absl::IsNotFound(reply.status())) {
      status.Update(reply.status());
    }
  }
  if (!status.ok()) return status;
  return values;
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
  RETURN_IF_ERROR(Begin(request));
  return Finish(request, timeout);
}

absl::Status LinkStore::Begin(const Request& request) {
  const std::string& id = request.request_id();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_.ok()) return base::Annotate(closed_, Name(request));
    if (!calls_.emplace(id, std::nullopt).second) {
      return absl::FailedPreconditionError(
          absl::StrCat(Name(request), ": request ", id, " is running"));
    }
  }
  absl::Status sent = send_(request);
  if (sent.ok()) return sent;
  std::lock_guard<std::mutex> lock(mutex_);
  calls_.erase(id);
  return base::Annotate(sent, Name(request));
}

absl::StatusOr<LinkStore::StoreReply> LinkStore::Finish(const Request& request,
                                                        absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto call = calls_.find(request.request_id());
  const auto is_over = [&]() { return call->second.has_value() || !closed_.ok(); };
  changed_.wait_for(lock, absl::ToChronoNanoseconds(std::min(timeout, kCallMax)), is_over);
  std::optional<StoreReply> reply = std::move(call->second);
  calls_.erase(call);
  if (reply.has_value()) {
    if (reply->code() == 0) return *std::move(reply);
    return absl::Status(static_cast<absl::StatusCode>(reply->code()),
                        absl::StrCat(Name(request), ": ", reply->message()));
  }
  if (!closed_.ok()) return base::Annotate(closed_, Name(request));
  return absl::DeadlineExceededError(
      absl::StrCat(Name(request), ": no answer within ", absl::FormatDuration(timeout)));
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
