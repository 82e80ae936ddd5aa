#include "controlplane/agent/service/store_forwarder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/checksum.h"

namespace megascale::agent {
namespace {

using v1::StoreRequest;

// Returns the prefix of an attempt's keys. A digest of the attempt's secret separates equal names
// on the same server: jobs of other drivers, or of a driver that lost its state. The digest does
// not reveal the secret.
std::string ScopeOf(const v1::DesiredJob& job) {
  constexpr size_t kDigits = 16;
  const std::string digest = base::Sha256Hex(absl::StrCat("store/", job.secret()));
  return absl::StrCat(job.job_id(), ":", job.attempt(), ":", digest.substr(0, kDigits));
}

std::string Prefix(int64_t process_id) { return absl::StrCat(process_id, "/"); }

// True if an answer concerns the request and not the server.
bool IsAboutRequest(const v1::StoreReply& reply) {
  switch (static_cast<absl::StatusCode>(reply.code())) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      return true;
    default:
      return false;
  }
}

StoreRequest CheckRequest(StoreRequest::Operation operation, const std::string& request_id,
                          const std::string& key) {
  StoreRequest request;
  request.set_operation(operation);
  request.set_request_id(request_id);
  request.set_key(key);
  request.set_value("1");
  request.set_amount(1);
  return request;
}

}  // namespace

StoreForwarder::StoreForwarder(StoreAccess access, SendToDriver driver, SendToProcess process)
    : access_(std::move(access)),
      send_to_driver_(std::move(driver)),
      send_to_process_(std::move(process)) {}

void StoreForwarder::OnStarted(int64_t process_id, const v1::DesiredJob& job) {
  clients_[process_id] = {job.spec().store(), ScopeOf(job), ""};
}

void StoreForwarder::OnRequest(int64_t process_id, StoreRequest request, absl::Duration now) {
  // Ids are unique within a process; the prefix makes them unique on the stream and names the
  // process.
  request.set_request_id(absl::StrCat(Prefix(process_id), request.request_id()));
  const Client& client = clients_[process_id];
  if (client.address.empty()) {
    waiting_[request.request_id()] = request;
    *batch_.add_requests() = std::move(request);
    return;
  }
  StoreAt(client.address)
      .Handle(
          client.scope, request,
          [this, process_id](const v1::StoreReply& reply) { OnRedisReply(process_id, reply); },
          now);
}

std::string StoreForwarder::OnEnded(int64_t process_id) {
  for (auto* requests : {&written_, &waiting_}) {
    std::erase_if(*requests, [&](const auto& item) {
      return absl::StartsWith(item.first, Prefix(process_id));
    });
  }
  auto ended = clients_.extract(process_id);
  if (ended.empty()) return "";
  const auto store = stores_.find(ended.mapped().address);
  if (store != stores_.end()) store->second->ForgetAll(Prefix(process_id));
  return ended.mapped().failure;
}

// --- the driver's store ---------------------------------------------------------------------

void StoreForwarder::OnStreamOpened() {
  batch_.Clear();
  // Repeating them does no harm.
  for (const auto* requests : {&written_, &waiting_}) {
    for (const auto& [id, request] : *requests) *batch_.add_requests() = request;
  }
}

void StoreForwarder::OnDriverReply(const v1::StoreReply& reply) {
  auto answered = waiting_.extract(reply.request_id());
  if (answered.empty()) return;
  const StoreRequest::Operation operation = answered.mapped().operation();
  const bool is_written =
      operation == StoreRequest::OPERATION_SET || operation == StoreRequest::OPERATION_ADD;
  if (is_written && reply.code() == 0) written_.insert(std::move(answered));
  int64_t process_id = 0;
  const std::vector<std::string> parts =
      absl::StrSplit(reply.request_id(), absl::MaxSplits('/', 1));
  if (absl::SimpleAtoi(parts[0], &process_id)) Answer(process_id, reply);
}

void StoreForwarder::FlushToDriver() {
  if (batch_.requests().empty()) return;
  v1::AgentUp message;
  message.mutable_store()->Swap(&batch_);
  batch_.Clear();
  send_to_driver_(std::move(message));
}

void StoreForwarder::Answer(int64_t process_id, const v1::StoreReply& reply) {
  v1::StoreReply answer = reply;
  answer.set_request_id(reply.request_id().substr(Prefix(process_id).size()));
  send_to_process_(process_id, answer);
}

// --- Redis ----------------------------------------------------------------------------------

comm::RedisStore& StoreForwarder::StoreAt(const std::string& address) {
  std::unique_ptr<comm::RedisStore>& store = stores_[address];
  if (store == nullptr) {
    comm::RedisStoreOptions options;
    // The driver has checked it.
    options.address = comm::ParseRedisAddress(address).value_or(comm::RedisAddress());
    options.password_file = access_.password_file;
    options.tls = access_.tls;
    store = std::make_unique<comm::RedisStore>(std::move(options));
  }
  return *store;
}

void StoreForwarder::OnRedisReply(int64_t process_id, const v1::StoreReply& reply) {
  const auto client = clients_.find(process_id);
  if (client == clients_.end()) return;
  if (!IsAboutRequest(reply)) client->second.failure = reply.message();
  Answer(process_id, reply);
}

void StoreForwarder::Check(const std::string& node_id, const v1::DesiredJob& job,
                           absl::Duration now) {
  const StoreCheck check = {job.job_id(), job.attempt(), absl::OkStatus()};
  comm::RedisStore& store = StoreAt(job.spec().store());
  const std::string scope = ScopeOf(job);
  const std::string id = absl::StrCat("check/", node_id, "/", ++num_checks_, "/");
  const std::string key = absl::StrCat("check/", node_id);
  const auto ask = [&](StoreRequest::Operation operation, const char* name, bool is_last) {
    store.Handle(
        scope, CheckRequest(operation, id + name, key),
        [this, check, is_last](const v1::StoreReply& reply) {
          OnCheckReply(check, reply, is_last);
        },
        now);
  };
  // Answers come in this order.
  ask(StoreRequest::OPERATION_SET, "set", false);
  ask(StoreRequest::OPERATION_ADD, "add", false);
  ask(StoreRequest::OPERATION_GET, "get", true);
}

void StoreForwarder::OnCheckReply(const StoreCheck& check, const v1::StoreReply& reply,
                                  bool is_last) {
  const bool is_known = std::any_of(checks_.begin(), checks_.end(), [&](const StoreCheck& known) {
    return known.job_id == check.job_id && known.attempt == check.attempt;
  });
  if (is_known || (reply.code() == 0 && !is_last)) return;
  StoreCheck outcome = check;
  outcome.outcome = absl::Status(static_cast<absl::StatusCode>(reply.code()), reply.message());
  checks_.push_back(std::move(outcome));
}

std::vector<StoreCheck> StoreForwarder::TakeChecks() { return std::exchange(checks_, {}); }

void StoreForwarder::AddPollEntries(std::vector<pollfd>* entries) const {
  for (const auto& [address, store] : stores_) {
    if (store->fd() >= 0) entries->push_back({store->fd(), store->events(), 0});
  }
}

absl::Duration StoreForwarder::NextWake() const {
  absl::Duration wake = absl::InfiniteDuration();
  for (const auto& [address, store] : stores_) wake = std::min(wake, store->NextWake());
  return wake;
}

void StoreForwarder::Drive(absl::Duration now) {
  for (const auto& [address, store] : stores_) store->Drive(now);
  // A store without connection and requests is dropped, and made again for the next request.
  std::erase_if(stores_, [](const auto& item) {
    return !item.second->is_connected() && item.second->num_waiting() == 0;
  });
}

}  // namespace megascale::agent
