#include "runtime/comm/store/redis/redis_store.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/comm/store/redis/password_file.h"
#include "runtime/comm/store/store_request.h"

namespace megascale::comm {
namespace {

using megascale::agent::v1::StoreReply;

constexpr size_t kKeysPerPoll = 16;  // values may be large, so this bounds the reply
constexpr size_t kWindowMin = 2;     // keys of one WAIT in a round of polls
constexpr size_t kWindowMax = 64;
constexpr size_t kSentMax = 1024;
constexpr size_t kUnsentBytesMax = 4 << 20;
constexpr size_t kCallBytes = 256;  // approximate cost of a call in addition to its bytes
constexpr char kStartIt[] = "; start the server, or let the job's `store` name one that runs";

// KEYS: the number, the remembered result of the request. ARGV: amount, seconds until both expire.
// Sums are read back as text, because Lua's numbers have 53 bits.
constexpr char kAddScript[] =
    "local done = redis.call('GET', KEYS[2]) "
    "if done then return done end "
    "local sum = redis.pcall('INCRBY', KEYS[1], ARGV[1]) "
    "if type(sum) == 'table' and sum.err then return sum end "
    "sum = redis.call('GET', KEYS[1]) "
    "redis.call('EXPIRE', KEYS[1], ARGV[2]) "
    "redis.call('SET', KEYS[2], sum, 'EX', ARGV[2]) "
    "return sum";

std::string ValueKey(const std::string& scope, const std::string& key) {
  return absl::StrCat("megascale:{", scope, "}:v:", key);
}

std::string AdditionKey(const std::string& scope, const std::string& request_id) {
  return absl::StrCat("megascale:{", scope, "}:a:", request_id);
}

absl::Status DoesNotFit() { return absl::DataLossError("sent a reply that fits no question"); }

RedisConnectionLimits LimitsOf(const RedisStoreOptions& options) {
  constexpr size_t kPerElement = 1024;
  return {.reply_bytes_max = kKeysPerPoll * (options.value_bytes_max + kPerElement),
          .elements_max = kKeysPerPoll};
}

size_t BytesOf(const RedisStore::StoreRequest& request) {
  constexpr size_t kKeyBytes = 64;  // of a key and its value, in addition to the key's bytes
  size_t bytes =
      kCallBytes + request.key().size() + request.value().size() + request.request_id().size();
  for (const std::string& key : request.keys()) bytes += kKeyBytes + key.size();
  return bytes;
}

}  // namespace

RedisStore::RedisStore(RedisStoreOptions options)
    : options_(std::move(options)),
      backoff_(options_.backoff_min),
      poll_pause_(options_.poll_min) {}

std::string RedisStore::Place() const { return absl::StrCat("store ", ToText(options_.address)); }

// --- requests ---

absl::Status RedisStore::Check(const StoreRequest& request) const {
  RETURN_IF_ERROR(CheckSizes(request, options_.key_bytes_max, options_.value_bytes_max));
  switch (request.operation()) {
    case StoreRequest::OPERATION_SET:
    case StoreRequest::OPERATION_GET:
    case StoreRequest::OPERATION_WAIT:
    case StoreRequest::OPERATION_ADD:
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("the store knows no operation ", request.operation()));
  }
  if (calls_bytes_ + BytesOf(request) > options_.waiting_bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat(Place(), ": ", calls_bytes_,
                                                     " bytes of requests wait for it, at most ",
                                                     options_.waiting_bytes_max));
  }
  return absl::OkStatus();
}

void RedisStore::Handle(const std::string& scope, const StoreRequest& request, Reply reply,
                        absl::Duration now) {
  Forget(request.request_id());
  used_ = now;
  if (const absl::Status checked = Check(request); !checked.ok()) {
    outgoing_.emplace_back(std::move(reply), MakeReply(request.request_id(), checked));
    return CallReplies();
  }
  const CallName name = {request.request_id(), ++last_serial_};
  calls_bytes_ += BytesOf(request);
  calls_[name.first] = {scope, request, std::move(reply), name.second};
  if (!unanswered_since_.has_value()) unanswered_since_ = now;
  if (request.operation() == StoreRequest::OPERATION_WAIT) {
    calls_[name.first].values.resize(NumKeys(request));
    waits_.insert(name.first);
    poll_pause_ = options_.poll_min;
    next_poll_ = -absl::InfiniteDuration();
  } else {
    queue_.push_back(name);
  }
}

void RedisStore::Forget(const std::string& request_id) {
  const auto found = calls_.find(request_id);
  if (found == calls_.end()) return;
  calls_bytes_ -= BytesOf(found->second.request);
  waits_.erase(request_id);
  calls_.erase(found);
  if (calls_.empty()) unanswered_since_.reset();
}

RedisStore::Call* RedisStore::Find(const CallName& name) {
  const auto found = calls_.find(name.first);
  return found == calls_.end() || found->second.serial != name.second ? nullptr : &found->second;
}

void RedisStore::Answer(const CallName& name, StoreReply answer) {
  Call* call = Find(name);
  if (call == nullptr) return;
  answer.set_request_id(name.first);
  outgoing_.emplace_back(std::move(call->reply), std::move(answer));
  Forget(name.first);
}

void RedisStore::AnswerError(const CallName& name, const absl::Status& status) {
  Answer(name, MakeReply(name.first, status));
}

void RedisStore::FailAll(const absl::Status& why) {
  if (calls_.empty()) return;
  base::LogWarning(why.message());
  while (!calls_.empty()) {
    AnswerError({calls_.begin()->first, calls_.begin()->second.serial}, why);
  }
  queue_.clear();
}

void RedisStore::CallReplies() {
  for (auto& [reply, message] : std::exchange(outgoing_, {})) reply(message);
}

// --- the connection ---

int RedisStore::fd() const {
  if (connection_ != nullptr) return connection_->fd();
  return dial_ != nullptr ? dial_->fd() : -1;
}

short RedisStore::events() const {
  if (connection_ != nullptr) return connection_->events();
  return dial_ != nullptr ? dial_->events() : static_cast<short>(0);
}

absl::Duration RedisStore::ConnectionDeadline() const {
  const bool is_asked = dial_ != nullptr || !sent_.empty();
  return is_asked ? quiet_since_ + options_.connection_timeout : absl::InfiniteDuration();
}

absl::Duration RedisStore::NextWake() const {
  absl::Duration wake = ConnectionDeadline();
  if (unanswered_since_.has_value()) {
    wake = std::min(wake, *unanswered_since_ + options_.give_up_after);
  }
  if (connection_ == nullptr && dial_ == nullptr) {
    return calls_.empty() ? wake : std::min(wake, connect_after_);
  }
  if (connection_ != nullptr && num_greetings_ == 0 && num_polls_ == 0 && !waits_.empty()) {
    wake = std::min(wake, next_poll_);
  }
  if (connection_ != nullptr && num_greetings_ == 0 && !queue_.empty() && sent_.size() < kSentMax &&
      connection_->unsent_bytes() < kUnsentBytesMax) {
    return -absl::InfiniteDuration();
  }
  const bool is_idle = calls_.empty() && sent_.empty();
  return is_idle ? std::min(wake, used_ + options_.idle_after) : wake;
}

void RedisStore::Drive(absl::Duration now) {
  if (!calls_.empty()) used_ = now;
  if (connection_ == nullptr && dial_ == nullptr && !calls_.empty() && now >= connect_after_) {
    Connect(now);
  }
  if (dial_ != nullptr) DriveDial(now);
  if (connection_ != nullptr) DriveConnection(now);
  CheckTimes(now);
  if (connection_ != nullptr && num_greetings_ == 0) {
    SendDue(now);
    DriveConnection(now);
  }
  CallReplies();
}

void RedisStore::Connect(absl::Duration now) {
  dial_ = std::make_unique<RedisDial>(options_.address, options_.tls);
  quiet_since_ = now;
}

void RedisStore::DriveDial(absl::Duration now) {
  const absl::StatusOr<bool> connected = dial_->Drive();
  if (!connected.ok()) return Lose(connected.status(), now);
  if (!*connected) return;
  tunnel_ = dial_->TakeTunnel();
  connection_ = std::make_unique<RedisConnection>(dial_->TakeSocket(), LimitsOf(options_));
  dial_.reset();
  if (const absl::Status greeted = Greet(); !greeted.ok()) Lose(greeted, now);
}

// Sends the greeting. No request of the job is sent before the server has answered it.
absl::Status RedisStore::Greet() {
  std::string password;
  if (!options_.password_file.empty()) {
    ASSIGN_OR_RETURN(password, FindPassword(options_.password_file, options_.address));
  }
  std::vector<std::vector<std::string>> commands;
  if (!options_.address.user.empty()) {
    commands.push_back({"AUTH", options_.address.user, password});
  } else if (!password.empty()) {
    commands.push_back({"AUTH", password});
  }
  if (options_.address.database != 0) {
    commands.push_back({"SELECT", absl::StrCat(options_.address.database)});
  }
  commands.push_back({"PING"});
  for (const std::vector<std::string>& words : commands) {
    connection_->Send(words);
    sent_.push_back({Sent::Kind::kGreeting});
    ++num_greetings_;
  }
  return absl::OkStatus();
}

void RedisStore::DriveConnection(absl::Duration now) {
  if (connection_ == nullptr) return;
  const std::vector<RedisReply> replies = connection_->Drive();
  for (const RedisReply& reply : replies) {
    quiet_since_ = now;
    // A reply of the wrong kind counts as no answer.
    const absl::Status taken = OnReply(sent_.front(), reply, now);
    if (!taken.ok()) return Lose(taken, now);
    sent_.pop_front();
  }
  if (connection_->status().ok()) return;
  absl::Status why = connection_->status();
  if (tunnel_ != nullptr && !tunnel_->status().ok()) why = tunnel_->status();
  Lose(why, now);
}

// Ends the connection. The next one sends unanswered commands again, in their order.
void RedisStore::Lose(const absl::Status& why, absl::Duration now) {
  connection_.reset();
  tunnel_.reset();
  dial_.reset();
  for (auto sent = sent_.rbegin(); sent != sent_.rend(); ++sent) {
    if (sent->kind == Sent::Kind::kCall) queue_.push_front(*sent->call);
  }
  sent_.clear();
  num_greetings_ = num_polls_ = 0;
  next_poll_ = -absl::InfiniteDuration();
  connect_after_ = now + backoff_;
  backoff_ = std::min(2 * backoff_, options_.backoff_max);
  last_error_ = why;
  if (!absl::IsFailedPrecondition(why)) return;
  FailAll(absl::FailedPreconditionError(absl::StrCat(Place(), ": ", why.message())));
}

void RedisStore::CheckTimes(absl::Duration now) {
  if (now >= ConnectionDeadline()) {
    Lose(absl::UnavailableError(absl::StrCat(dial_ != nullptr
                                                 ? "cannot be connected to within "
                                                 : "takes connections but does not answer within ",
                                             absl::FormatDuration(options_.connection_timeout))),
         now);
  }
  if (unanswered_since_.has_value() && now >= *unanswered_since_ + options_.give_up_after) {
    const std::string why =
        last_error_.ok() ? absl::StrCat("no answer within ",
                                        absl::FormatDuration(options_.give_up_after), kStartIt)
        : absl::StrContains(last_error_.message(), ';')
            ? std::string(last_error_.message())
            : absl::StrCat(last_error_.message(), kStartIt);
    FailAll(absl::UnavailableError(absl::StrCat(Place(), ": ", why)));
  }
  if (connection_ != nullptr && calls_.empty() && sent_.empty() &&
      now >= used_ + options_.idle_after) {
    connection_.reset();
    tunnel_.reset();
  }
}

// --- commands and replies ---

std::vector<std::string> RedisStore::WordsOf(const Call& call) const {
  const StoreRequest& request = call.request;
  const std::string key = ValueKey(call.scope, request.key());
  const std::string expiry = absl::StrCat(absl::ToInt64Seconds(options_.expiry));
  switch (request.operation()) {
    case StoreRequest::OPERATION_SET:
      return {"SET", key, request.value(), "EX", expiry};
    case StoreRequest::OPERATION_ADD:
      return {"EVAL",
              kAddScript,
              "2",
              key,
              AdditionKey(call.scope, request.request_id()),
              absl::StrCat(request.amount()),
              expiry};
    default:
      return {"GET", key};
  }
}

void RedisStore::Send(Sent sent, const std::vector<std::string>& words, absl::Duration now) {
  if (sent_.empty()) quiet_since_ = now;
  connection_->Send(words);
  sent_.push_back(std::move(sent));
}

void RedisStore::SendDue(absl::Duration now) {
  while (!queue_.empty() && sent_.size() < kSentMax &&
         connection_->unsent_bytes() < kUnsentBytesMax) {
    const CallName name = std::move(queue_.front());
    queue_.pop_front();
    const Call* call = Find(name);
    if (call != nullptr) Send({.kind = Sent::Kind::kCall, .call = name}, WordsOf(*call), now);
  }
  if (!waits_.empty() && num_polls_ == 0 && now >= next_poll_) SendPolls(now);
}

// A round of polls. Several WAITs for the same key ask for it once.
void RedisStore::SendPolls(absl::Duration now) {
  found_in_round_ = false;
  std::map<std::string, std::vector<Target>> asked;
  for (const std::string& id : waits_) {
    Call& call = calls_.at(id);
    call.window = call.all_found ? std::min(2 * call.window, kWindowMax) : kWindowMin;
    call.all_found = true;
    size_t num_asked = 0;
    for (size_t i = call.first_missing; i < call.values.size() && num_asked < call.window; ++i) {
      if (call.values[i].has_value()) continue;
      asked[ValueKey(call.scope, KeyOf(call.request, i))].push_back({{id, call.serial}, i});
      ++num_asked;
    }
  }
  const std::vector<std::string> command = {"MGET"};
  std::vector<std::string> words = command;
  Sent poll = {.kind = Sent::Kind::kPoll};
  for (auto key = asked.begin(); key != asked.end();) {
    words.push_back(key->first);
    poll.targets.push_back(std::move(key->second));
    if (++key != asked.end() && poll.targets.size() < kKeysPerPoll) continue;
    Send(std::exchange(poll, {.kind = Sent::Kind::kPoll}), words, now);
    ++num_polls_;
    words = command;
  }
}

absl::Status RedisStore::OnReply(const Sent& sent, const RedisReply& reply, absl::Duration now) {
  switch (sent.kind) {
    case Sent::Kind::kGreeting:
      --num_greetings_;
      return OnGreetingReply(reply);
    case Sent::Kind::kCall:
      RETURN_IF_ERROR(OnCallReply(*sent.call, reply));
      break;
    case Sent::Kind::kPoll:
      --num_polls_;
      RETURN_IF_ERROR(OnPollReply(sent, reply, now));
      break;
  }
  // The server answered a real request; a greeting alone would not show that it works.
  last_error_ = absl::OkStatus();
  backoff_ = options_.backoff_min;
  if (unanswered_since_.has_value()) unanswered_since_ = now;
  return absl::OkStatus();
}

absl::Status RedisStore::OnGreetingReply(const RedisReply& reply) {
  if (reply.kind == RedisReply::Kind::kError) return StatusOfError(reply);
  return reply.kind == RedisReply::Kind::kStatus ? absl::OkStatus() : DoesNotFit();
}

absl::Status RedisStore::OnCallReply(const CallName& name, const RedisReply& reply) {
  const Call* call = Find(name);
  if (call == nullptr) return absl::OkStatus();  // the caller no longer waits for it
  if (reply.kind == RedisReply::Kind::kError) {
    AnswerError(name, base::Annotate(StatusOfError(reply), Place()));
    return absl::OkStatus();
  }
  StoreReply answer;
  switch (call->request.operation()) {
    case StoreRequest::OPERATION_SET:
      if (reply.kind != RedisReply::Kind::kStatus) return DoesNotFit();
      break;
    case StoreRequest::OPERATION_ADD: {
      int64_t sum = 0;
      if (reply.kind != RedisReply::Kind::kText || !absl::SimpleAtoi(reply.text, &sum)) {
        return DoesNotFit();
      }
      answer.set_sum(sum);
      break;
    }
    default:
      if (reply.kind == RedisReply::Kind::kNil) {
        AnswerError(
            name, absl::NotFoundError(absl::StrCat("the store has no key ", call->request.key())));
        return absl::OkStatus();
      }
      if (reply.kind != RedisReply::Kind::kText) return DoesNotFit();
      answer.set_value(reply.text);
  }
  Answer(name, std::move(answer));
  return absl::OkStatus();
}

void RedisStore::OnFound(const Target& target, const std::string& value) {
  Call* call = Find(target.name);
  if (call == nullptr || call->values[target.key].has_value()) return;
  call->values[target.key] = value;
  call->found_bytes += value.size();
  ++call->num_found;
  while (call->first_missing < call->values.size() &&
         call->values[call->first_missing].has_value()) {
    ++call->first_missing;
  }
  if (call->num_found < call->values.size()) return;
  if (call->request.keys().empty()) {
    StoreReply answer;
    answer.set_value(*std::move(call->values[0]));
    return Answer(target.name, std::move(answer));
  }
  const absl::Status fits =
      CheckReplySize(call->values.size(), call->found_bytes, options_.reply_bytes_max);
  if (!fits.ok()) return AnswerError(target.name, fits);
  StoreReply answer;
  for (std::optional<std::string>& found : call->values) answer.add_values(*std::move(found));
  Answer(target.name, std::move(answer));
}

absl::Status RedisStore::OnPollReply(const Sent& sent, const RedisReply& reply,
                                     absl::Duration now) {
  if (reply.kind == RedisReply::Kind::kError) {
    const absl::Status why = base::Annotate(StatusOfError(reply), Place());
    for (const std::vector<Target>& targets : sent.targets) {
      for (const Target& target : targets) AnswerError(target.name, why);
    }
    return absl::OkStatus();
  }
  if (reply.kind != RedisReply::Kind::kArray || reply.elements.size() != sent.targets.size()) {
    return DoesNotFit();
  }
  for (size_t i = 0; i < sent.targets.size(); ++i) {
    const RedisReply& element = reply.elements[i];
    if (element.kind == RedisReply::Kind::kNil) {
      for (const Target& target : sent.targets[i]) {
        if (Call* call = Find(target.name); call != nullptr) call->all_found = false;
      }
      continue;
    }
    if (element.kind != RedisReply::Kind::kText) return DoesNotFit();
    found_in_round_ = true;
    for (const Target& target : sent.targets[i]) OnFound(target, element.text);
  }
  if (num_polls_ > 0) return absl::OkStatus();
  // After a found key, more keys are likely to appear soon.
  poll_pause_ = found_in_round_ ? options_.poll_min : poll_pause_;
  next_poll_ = std::max(next_poll_, now + poll_pause_);
  poll_pause_ = std::min(2 * poll_pause_, options_.poll_max);
  return absl::OkStatus();
}

}  // namespace megascale::comm
