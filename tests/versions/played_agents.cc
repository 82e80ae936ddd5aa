#include "tests/versions/played_agents.h"

#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/versions/conversation.h"

namespace megascale::versions {
namespace {

using agent::v1::AgentDown;
using agent::v1::AgentUp;

constexpr absl::Duration kPatience = absl::Seconds(30);

std::string RequestIdOf(const AgentDown& down) {
  if (down.has_fetch_log()) return down.fetch_log().request_id();
  if (down.has_fetch_spans()) return down.fetch_spans().request_id();
  return down.fetch_evidence().request_id();
}

std::string RequestIdOf(const AgentUp& up) {
  if (up.has_log()) return up.log().request_id();
  if (up.has_spans()) return up.spans().request_id();
  return up.evidence().request_id();
}

void SetRequestId(const std::string& request_id, AgentUp* up) {
  if (up->has_log()) up->mutable_log()->set_request_id(request_id);
  if (up->has_spans()) up->mutable_spans()->set_request_id(request_id);
  if (up->has_evidence()) up->mutable_evidence()->set_request_id(request_id);
}

}  // namespace

std::string FetchKey(const AgentDown& down) {
  AgentDown key = down;
  if (key.has_fetch_log()) {
    key.mutable_fetch_log()->clear_request_id();
  } else if (key.has_fetch_spans()) {
    key.mutable_fetch_spans()->clear_request_id();
    key.mutable_fetch_spans()->clear_first_step();  // the newest steps, whichever they are
  } else if (key.has_fetch_evidence()) {
    key.mutable_fetch_evidence()->clear_request_id();
  } else {
    return "";
  }
  return key.ShortDebugString();
}

std::map<std::string, std::map<std::string, AgentUp>> AnswersIn(
    const v1::Conversation& conversation) {
  std::map<std::string, std::map<std::string, AgentUp>> answers;
  std::map<std::string, std::string> keys;  // by node and request id
  for (const v1::Entry& entry : conversation.entries()) {
    const std::string& node_id = entry.node_id();
    if (const std::string key = FetchKey(entry.down()); !key.empty()) {
      keys[absl::StrCat(node_id, " ", RequestIdOf(entry.down()))] = key;
    }
    const auto asked = keys.find(absl::StrCat(node_id, " ", RequestIdOf(entry.up())));
    if (asked != keys.end()) answers[node_id][asked->second] = entry.up();
  }
  return answers;
}

PlayedAgent::PlayedAgent(const std::shared_ptr<grpc::Channel>& channel,
                         const std::map<std::string, Up>& answers, Variants variants)
    : answers_(answers),
      variants_(std::move(variants)),
      stub_(agent::v1::AgentService::NewStub(channel)),
      stream_(stub_->Connect(&context_)),
      reader_([this] { Read(); }) {}

PlayedAgent::~PlayedAgent() {
  context_.TryCancel();
  reader_.join();
  stream_->Finish();
}

void PlayedAgent::Read() {
  Down down;
  while (stream_->Read(&down)) Take(down);
  absl::MutexLock lock(&mutex_);
  has_ended_ = true;
}

bool PlayedAgent::Join(const Up& hello) {
  for (const Up& up : variants_ ? variants_(hello) : std::vector<Up>{hello}) {
    (void)stream_->Write(up);  // false: it is refused, which ends the stream
  }
  absl::MutexLock lock(&mutex_);
  const auto is_answered = [this] { return has_ended_ || !seen_.empty(); };
  return mutex_.AwaitWithTimeout(absl::Condition(&is_answered), kPatience) && !has_ended_;
}

void PlayedAgent::Take(const Down& down) {
  if (!FetchKey(down).empty()) return Answer(down);
  absl::MutexLock lock(&mutex_);
  for (const auto& reply : down.store().replies()) answered_.insert(reply.request_id());
  if (!down.has_desired()) return;
  const agent::v1::DesiredState& desired = down.desired();
  seen_.push_back({DesiredText(desired), desired.version(), desired.epoch(), desired.proof()});
  NotePlacements(desired, &placements_);
}

void PlayedAgent::Answer(const Down& down) {
  const int not_found = static_cast<int>(absl::StatusCode::kNotFound);
  Up up;
  if (const auto answer = answers_.find(FetchKey(down)); answer != answers_.end()) {
    up = answer->second;
  } else if (down.has_fetch_log()) {  // the recorded driver did not ask this
    up.mutable_log()->set_code(not_found);
  } else if (down.has_fetch_spans()) {
    up.mutable_spans()->set_code(not_found);
  } else {
    up.mutable_evidence()->set_code(not_found);
  }
  SetRequestId(RequestIdOf(down), &up);
  Write(up);
}

void PlayedAgent::Write(const Up& up) {
  const std::vector<Up> messages = variants_ ? variants_(up) : std::vector<Up>{up};
  absl::MutexLock lock(&write_mutex_);
  for (const Up& message : messages) {
    EXPECT_TRUE(stream_->Write(message)) << "the driver ended the stream at\n"
                                         << message.ShortDebugString().substr(0, 1000);
  }
}

void PlayedAgent::Send(const Up& up) {
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& request : up.store().requests()) asked_.insert(request.request_id());
  }
  Write(up);
}

void PlayedAgent::Report(agent::v1::ActualState actual) {
  {
    absl::MutexLock lock(&mutex_);
    const auto seen_of = [&](int64_t recorded) -> const Seen* {
      const auto found = by_version_.find(recorded);
      return found == by_version_.end() ? nullptr : &seen_[found->second];
    };
    const Seen* known = seen_of(actual.known_version());
    const Seen* applied = seen_of(actual.applied_version());
    EXPECT_TRUE(known != nullptr || actual.known_version() == 0) << actual.known_version();
    actual.set_epoch(known == nullptr ? 0 : known->epoch);
    actual.set_known_version(known == nullptr ? 0 : known->version);
    actual.set_known_proof(known == nullptr ? "" : known->proof);
    actual.set_applied_version(applied == nullptr ? 0 : applied->version);
  }
  Up up;
  *up.mutable_actual() = std::move(actual);
  Write(up);
}

size_t PlayedAgent::Find(const std::string& text) const {
  for (size_t i = next_; i < seen_.size(); ++i) {
    if (seen_[i].text != text) continue;
    while (i + 1 < seen_.size() && seen_[i + 1].text == text) ++i;
    return i + 1;
  }
  return 0;
}

size_t PlayedAgent::Await(const agent::v1::DesiredState& wanted,
                          const std::vector<agent::v1::DesiredState>& later) {
  std::vector<std::pair<std::string, int64_t>> states = {{DesiredText(wanted), wanted.version()}};
  for (const auto& one : later) states.emplace_back(DesiredText(one), one.version());
  absl::MutexLock lock(&mutex_);
  size_t num_over = 0;
  size_t found = 0;
  const auto is_wanted = [&] {
    for (size_t i = 0; i < states.size(); ++i) {
      found = Find(states[i].first);
      if (found == 0) continue;
      num_over = i + 1;
      return true;
    }
    return false;
  };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&is_wanted), kPatience)) return 0;
  next_ = found - 1;
  for (size_t i = 0; i < num_over; ++i) by_version_[states[i].second] = found - 1;
  return num_over;
}

bool PlayedAgent::AwaitStore() {
  absl::MutexLock lock(&mutex_);
  const auto are_answered = [&] {
    for (const std::string& id : asked_) {
      if (answered_.count(id) == 0) return false;
    }
    return true;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&are_answered), kPatience);
}

std::map<std::string, std::string> PlayedAgent::placements() {
  absl::MutexLock lock(&mutex_);
  return placements_;
}

std::string PlayedAgent::newest() {
  absl::MutexLock lock(&mutex_);
  return seen_.empty() ? "nothing" : seen_.back().text;
}

}  // namespace megascale::versions
