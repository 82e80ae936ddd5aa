#include "controlplane/agent/service/store_forwarder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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

// Stands between the id of a WAIT for many keys and the number of a key.
constexpr char kPart[] = "#";

// Two WAITs with the same signature get the same answer.
std::string SignatureOf(const std::string& address, const std::string& scope,
                        const StoreRequest& request) {
  const std::string one = request.keys().empty() ? request.key() : "";
  std::string signature = absl::StrCat(address, "\n", scope, "\n", request.job_id(), "\n",
                                       request.attempt(), "\n", one.size(), ":", one);
  for (const std::string& key : request.keys()) {
    absl::StrAppend(&signature, "\n", key.size(), ":", key);
  }
  return signature;
}

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
  const Asker asker = {process_id, request.request_id()};
  const Client& client = clients_[process_id];
  std::string signature;
  if (request.operation() == StoreRequest::OPERATION_WAIT) {
    signature = SignatureOf(client.address, client.scope, request);
    if (const auto same = shared_.find(signature); same != shared_.end()) {
      std::vector<Asker>& askers = asked_.at(same->second).askers;
      if (std::find(askers.begin(), askers.end(), asker) == askers.end()) askers.push_back(asker);
      return;
    }
  }
  // Ids are unique within a process; the prefix makes them unique on the stream.
  const std::string id = absl::StrCat(Prefix(process_id), request.request_id());
  request.set_request_id(id);
  if (const auto old = asked_.find(id); old != asked_.end()) Take(old);
  if (!signature.empty()) shared_[signature] = id;
  Asked& asked = asked_[id];
  asked = {std::move(request), {asker}, client.address, std::move(signature)};
  SendToStore(asked, client.scope, now);
}

void StoreForwarder::SendToStore(Asked& asked, const std::string& scope, absl::Duration now) {
  if (asked.address.empty()) return AddToBatch(asked);
  const std::string& id = asked.request.request_id();
  StoreAt(asked.address)
      .Handle(
          scope, asked.request, [this, id](const v1::StoreReply& reply) { Answer(id, reply); },
          now);
}

void StoreForwarder::Answer(const std::string& id, const v1::StoreReply& reply) {
  const auto found = asked_.find(id);
  if (found == asked_.end()) return;
  const Asked asked = Take(found);
  const bool is_written = asked.request.operation() == StoreRequest::OPERATION_SET ||
                          asked.request.operation() == StoreRequest::OPERATION_ADD;
  if (is_written && asked.address.empty() && reply.code() == 0) written_[id] = asked.request;
  v1::StoreReply answer = reply;
  for (const Asker& asker : asked.askers) {
    const auto client = clients_.find(asker.process_id);
    if (client == clients_.end()) continue;
    if (!asked.address.empty() && !IsAboutRequest(reply)) client->second.failure = reply.message();
    answer.set_request_id(asker.request_id);
    send_to_process_(asker.process_id, answer);
  }
}

StoreForwarder::Asked StoreForwarder::Take(std::map<std::string, Asked>::iterator asked) {
  const auto shared = shared_.find(asked->second.signature);
  if (shared != shared_.end() && shared->second == asked->first) shared_.erase(shared);
  Asked taken = std::move(asked->second);
  asked_.erase(asked);
  return taken;
}

std::string StoreForwarder::OnEnded(int64_t process_id) {
  std::erase_if(written_,
                [&](const auto& item) { return absl::StartsWith(item.first, Prefix(process_id)); });
  for (auto asked = asked_.begin(); asked != asked_.end();) {
    const auto current = asked++;
    std::erase_if(current->second.askers,
                  [&](const Asker& asker) { return asker.process_id == process_id; });
    if (!current->second.askers.empty()) continue;
    const auto store = stores_.find(current->second.address);
    if (store != stores_.end()) store->second->Forget(current->first);
    Take(current);
  }
  auto ended = clients_.extract(process_id);
  return ended.empty() ? "" : ended.mapped().failure;
}

// --- the driver's store ---------------------------------------------------------------------

void StoreForwarder::OnStreamOpened() {
  batch_.Clear();
  // Repeating them does no harm.
  for (const auto& [id, request] : written_) *batch_.add_requests() = request;
  for (auto& [id, asked] : asked_) {
    if (asked.address.empty()) AddToBatch(asked);
  }
}

void StoreForwarder::AddToBatch(Asked& asked) {
  asked.parts.clear();
  if (driver_takes_many_keys_ || asked.request.keys().empty()) {
    *batch_.add_requests() = asked.request;
    return;
  }
  asked.parts.resize(static_cast<size_t>(asked.request.keys_size()));
  asked.num_parts_missing = asked.parts.size();
  StoreRequest part = asked.request;
  part.clear_keys();
  for (int i = 0; i < asked.request.keys_size(); ++i) {
    part.set_request_id(absl::StrCat(asked.request.request_id(), kPart, i));
    part.set_key(asked.request.keys(i));
    *batch_.add_requests() = part;
  }
}

void StoreForwarder::OnDriverReply(const v1::StoreReply& reply) {
  const std::string& id = reply.request_id();
  const auto asked = asked_.find(id);
  if (asked != asked_.end()) {
    if (asked->second.address.empty() && asked->second.parts.empty()) Answer(id, reply);
    return;
  }
  const size_t end = id.rfind(kPart);
  size_t index = 0;
  if (end == std::string::npos || !absl::SimpleAtoi(id.substr(end + 1), &index)) return;
  OnPart(id.substr(0, end), index, reply);
}

void StoreForwarder::OnPart(const std::string& id, size_t index, const v1::StoreReply& reply) {
  const auto found = asked_.find(id);
  if (found == asked_.end() || index >= found->second.parts.size()) return;
  if (reply.code() != 0) return Answer(id, reply);
  std::vector<std::optional<std::string>>& parts = found->second.parts;
  if (!parts[index].has_value()) --found->second.num_parts_missing;
  parts[index] = reply.value();
  if (found->second.num_parts_missing > 0) return;
  v1::StoreReply whole;
  for (const std::optional<std::string>& part : parts) whole.add_values(*part);
  Answer(id, whole);
}

void StoreForwarder::FlushToDriver() {
  if (batch_.requests().empty()) return;
  v1::AgentUp message;
  message.mutable_store()->Swap(&batch_);
  batch_.Clear();
  send_to_driver_(std::move(message));
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
