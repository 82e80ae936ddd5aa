#include "controlplane/driver/service/agent_streams.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "controlplane/driver/detection/agent_hello.h"
#include "controlplane/driver/listen/server_limits.h"
#include "controlplane/driver/service/attempt_store.h"
#include "controlplane/driver/service/driver_loop.h"
#include "controlplane/driver/service/grpc_status.h"
#include "controlplane/security/credentials.h"
#include "proto/agent.grpc.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;

// The maximum memory of the replies and requests that wait to be written: to one agent, beyond
// which its stream is ended; and to all agents together, beyond which the stream with the most is
// ended. The agent asks again on its next stream.
constexpr size_t kOutgoingBytesMax = size_t{16} << 20;
constexpr size_t kOutgoingBytesOfAllMax = size_t{128} << 20;
// Replies of the store are joined up to this size. A reply has at most 4 MiB.
constexpr size_t kJoinedBytesMax = size_t{1} << 20;
// A refused agent asks again every few seconds: one line about each in this time, and only about so
// many of them.
constexpr absl::Duration kRefusalLogInterval = absl::Minutes(1);
constexpr size_t kRefusalsNotedMax = 1024;
constexpr size_t kRefusedNameMax = 60;  // nobody has checked it: up to a message's size

}  // namespace

// State shared by all streams. Lock order: `mutex` before a session's mutex, never the other way.
struct AgentStreams::Impl {
  class Session;
  class Service;

  // An agent can answer only what it was asked itself.
  static std::string KeyOf(const std::string& node_id, const std::string& request_id) {
    return absl::StrCat(node_id, " ", request_id);
  }
  // Delivers a fetched piece to the caller that waits for it.
  void Answer(const std::string& key, agent::AgentUp piece);
  // Asks an agent and waits for its answer. The request is made with a fresh request id.
  absl::StatusOr<agent::AgentUp> Ask(
      const std::string& node_id, absl::Duration timeout,
      const std::function<agent::AgentDown(const std::string&)>& question);
  void HandleStore(const agent::StoreRequest& request, const std::string& node_id,
                   const std::shared_ptr<Session>& session);
  // Says in the log that an agent was refused, or its stream ended; `node_id` is what the agent
  // calls itself.
  void LogRefusal(const std::string& node_id, const absl::Status& why);
  void Forget(const std::string& node_id, const Session* session);
  // Ends the stream for which most messages wait, if too many wait in all.
  void EndLargest();

  DriverLoop* loop = nullptr;
  std::function<void(const std::string&)> on_call;
  std::unique_ptr<grpc::Service> service;
  AttemptStore store;
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Session>> sessions;       // by node
  std::map<std::string, std::promise<agent::AgentUp>> fetches;  // by KeyOf
  int64_t num_fetches = 0;
  std::atomic<size_t> outgoing_bytes = 0;                 // of all sessions
  std::map<std::string, absl::Duration> refusals_logged;  // when, by shortened node id
};

namespace {

// Returns the IP address in gRPC's name of a peer, "ipv4:10.0.0.1:4711" or "ipv6:%5B::1%5D:4711";
// "": a Unix socket.
std::string AddressOfPeer(absl::string_view peer) {
  if (!absl::ConsumePrefix(&peer, "ipv4:") && !absl::ConsumePrefix(&peer, "ipv6:")) return "";
  const absl::string_view address = peer.substr(0, peer.rfind(':'));
  return absl::StrReplaceAll(address, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
}

// Returns the question that a message answers; empty: none.
std::string AnsweredRequest(const agent::AgentUp& up) {
  if (up.has_log()) return up.log().request_id();
  return up.has_spans() ? up.spans().request_id() : up.evidence().request_id();
}

}  // namespace

// One stream. gRPC calls its reactions. It lives at least until OnDone, and as long as it is
// referenced.
class AgentStreams::Impl::Session
    : public AgentLink,
      public grpc::ServerBidiReactor<agent::AgentUp, agent::AgentDown>,
      public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<Impl> impl, grpc::CallbackServerContext* context)
      : impl_(std::move(impl)), context_(*context) {
    const auto peer = context->auth_context();
    if (peer != nullptr) peer_.certificate = security::PeerName(*peer);
    peer_.address = AddressOfPeer(context->peer());
  }

  void Begin() {
    self_ = shared_from_this();
    StartRead(&up_);
  }

  void SendDesired(const agent::DesiredState& desired) override {
    if (desired.ByteSizeLong() > size_t{kSentBytesMax}) {
      // gRPC would end the stream, and the next one, too.
      base::LogError(absl::StrCat("the desired state of node ", node_id_, " has ",
                                  desired.ByteSizeLong(),
                                  " bytes, more than a message may have: it is not sent"));
      return;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    desired_ = desired;
    WriteNext();
  }

  AgentPeer peer() const override { return peer_; }

  void Close(const absl::Status& why) override {
    std::lock_guard<std::mutex> lock(mutex_);
    FinishLocked(why);
  }

  void Send(agent::AgentDown down) override {
    const size_t bytes = down.SpaceUsedLong();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (finished_ || final_.has_value()) return;
      Count(outgoing_bytes_ + bytes);
      if (!outgoing_.empty() && Joins(outgoing_.back(), down)) {
        outgoing_.back().message.mutable_store()->MergeFrom(down.store());
        outgoing_.back().bytes += bytes;
      } else {
        outgoing_.push_back({std::move(down), bytes});
      }
      WriteNext();
    }
    if (outgoing_bytes_ > kOutgoingBytesMax) Drop();
    impl_->EndLargest();
  }

  // Ends the stream of an agent that does not read. gRPC takes no status while a write waits for
  // the agent, so the driver's log has the reason, too.
  void Drop() {
    absl::Status why;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (finished_ || final_.has_value()) return;
      why = absl::ResourceExhaustedError(
          absl::StrCat("node ", node_id_, ": its agent does not read: ", outgoing_.size(),
                       " messages of ", outgoing_bytes_.load(),
                       " bytes wait for it; the driver ends its stream, and it may connect again"));
      outgoing_.clear();
      Count(0);
      const bool waits = writing_;
      FinishLocked(why);
      if (waits) context_.TryCancel();
    }
    impl_->LogRefusal(node_id_, why);
  }

  size_t outgoing_bytes() const { return outgoing_bytes_; }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Close(absl::OkStatus());
      return;
    }
    if (node_id_.empty()) {
      OnHello();
    } else if (up_.has_actual()) {
      // The next message is read only after the loop has taken this report, so a fast agent waits
      // and its reports do not fill the memory.
      impl_->loop->OnReport(node_id_, std::move(*up_.mutable_actual()),
                            [session = shared_from_this()] { session->ReadNext(); });
    } else {
      for (const auto& request : up_.store().requests()) {
        impl_->HandleStore(request, node_id_, shared_from_this());
      }
      if (up_.has_data_files()) impl_->loop->OnDataFiles(std::move(*up_.mutable_data_files()));
      if (up_.has_fetch_data_files()) {
        impl_->loop->OnFetchDataFiles(up_.fetch_data_files(), shared_from_this());
      }
      const std::string id = AnsweredRequest(up_);
      if (!id.empty()) impl_->Answer(KeyOf(node_id_, id), std::move(up_));
      ReadNext();
    }
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    if (!ok) FinishLocked(absl::OkStatus());
    if (final_.has_value()) {
      FinishLocked(*final_);
      return;
    }
    WriteNext();
  }

  // The client disconnected, or the server ends. While the loop handles a report the stream is not
  // read, and a stopped loop drops the report: then only this ends the stream.
  void OnCancel() override { Close(absl::CancelledError("the stream was cancelled")); }

  void OnDone() override {
    if (!node_id_.empty()) impl_->loop->OnGone(node_id_, this);
    // This may be the last reference, so it is released after the lock.
    const std::shared_ptr<Session> last = std::move(self_);
    impl_->Forget(node_id_, this);
    std::lock_guard<std::mutex> lock(mutex_);
    finished_ = true;
    outgoing_.clear();
    Count(0);
  }

 private:
  void OnHello() {
    // It is kept in the log for good: only what this version understands.
    up_.DiscardUnknownFields();
    const agent::Hello& hello = up_.hello();
    if (const absl::Status status = CheckHello(hello); !status.ok()) {
      if (absl::IsFailedPrecondition(status)) impl_->LogRefusal(hello.node_id(), status);
      Close(status);
      return;
    }
    node_id_ = hello.node_id();
    impl_->loop->OnHello(hello, shared_from_this(),
                         [session = shared_from_this()] { session->OnJoined(); });
  }

  // From now on fetches for the node go through this stream.
  void OnJoined() {
    {
      std::lock_guard<std::mutex> lock(impl_->mutex);
      impl_->sessions[node_id_] = shared_from_this();
    }
    ReadNext();
  }

  void ReadNext() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return;
    up_.Clear();
    StartRead(&up_);
  }

  void WriteNext() {
    if (writing_ || finished_ || final_.has_value()) return;
    if (desired_.has_value()) {
      down_.Clear();
      *down_.mutable_desired() = *std::move(desired_);
      desired_.reset();
    } else if (!outgoing_.empty()) {
      down_ = std::move(outgoing_.front().message);
      Count(outgoing_bytes_ - outgoing_.front().bytes);
      outgoing_.pop_front();
    } else {
      return;
    }
    writing_ = true;
    StartWrite(&down_);
  }

  // Notes how many bytes wait.
  void Count(size_t bytes) {
    impl_->outgoing_bytes += bytes - outgoing_bytes_;
    outgoing_bytes_ = bytes;
  }

  // Waits for a write in flight, because gRPC takes the status only after it.
  void FinishLocked(const absl::Status& status) {
    if (finished_) return;
    if (writing_) {
      if (!final_.has_value()) final_ = status;
      return;
    }
    finished_ = true;
    Finish(ToGrpc(status));
  }

  const std::shared_ptr<Impl> impl_;
  grpc::CallbackServerContext& context_;  // lives until OnDone
  AgentPeer peer_;
  std::shared_ptr<Session> self_;
  std::string node_id_;  // set by the first message
  agent::AgentUp up_;

  struct Waiting {
    agent::AgentDown message;
    size_t bytes = 0;
  };
  // Whether `next` goes into the message that waits: replies of the store that come while another
  // message is written go together, of which there may be thousands when an attempt starts.
  static bool Joins(const Waiting& waiting, const agent::AgentDown& next) {
    return waiting.message.has_store() && next.has_store() && waiting.bytes < kJoinedBytesMax;
  }

  std::mutex mutex_;
  agent::AgentDown down_;
  std::optional<agent::DesiredState> desired_;
  std::deque<Waiting> outgoing_;
  std::atomic<size_t> outgoing_bytes_ = 0;  // changes under the mutex
  std::optional<absl::Status> final_;
  bool writing_ = false;
  bool finished_ = false;
};

class AgentStreams::Impl::Service : public agent::AgentService::CallbackService {
 public:
  explicit Service(std::weak_ptr<Impl> impl) : impl_(std::move(impl)) {}

  grpc::ServerBidiReactor<agent::AgentUp, agent::AgentDown>* Connect(
      grpc::CallbackServerContext* context) override {
    const std::shared_ptr<Impl> impl = impl_.lock();
    if (impl->on_call) impl->on_call(context->peer());
    auto session = std::make_shared<Session>(impl, context);
    session->Begin();
    return session.get();
  }

 private:
  const std::weak_ptr<Impl> impl_;
};

void AgentStreams::Impl::Answer(const std::string& key, agent::AgentUp piece) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto it = fetches.find(key);
  if (it == fetches.end()) return;
  it->second.set_value(std::move(piece));
  fetches.erase(it);
}

absl::StatusOr<agent::AgentUp> AgentStreams::Impl::Ask(
    const std::string& node_id, absl::Duration timeout,
    const std::function<agent::AgentDown(const std::string&)>& question) {
  std::shared_ptr<Session> session;
  std::string request_id;
  std::future<agent::AgentUp> future;
  {
    std::lock_guard<std::mutex> lock(mutex);
    const auto it = sessions.find(node_id);
    if (it != sessions.end()) session = it->second.lock();
    if (session == nullptr) {
      return absl::UnavailableError(absl::StrCat("node ", node_id, ": is not connected"));
    }
    request_id = absl::StrCat("fetch-", ++num_fetches);
    future = fetches[KeyOf(node_id, request_id)].get_future();
  }
  session->Send(question(request_id));
  const bool answered =
      future.wait_for(absl::ToChronoMilliseconds(timeout)) == std::future_status::ready;
  if (!answered) {
    std::lock_guard<std::mutex> lock(mutex);
    if (fetches.erase(KeyOf(node_id, request_id)) > 0) {
      return absl::DeadlineExceededError(absl::StrCat("node ", node_id, ": did not answer within ",
                                                      absl::FormatDuration(timeout)));
    }
  }
  return future.get();
}

void AgentStreams::Impl::HandleStore(const agent::StoreRequest& request, const std::string& node_id,
                                     const std::shared_ptr<Session>& session) {
  const auto reply = [weak = std::weak_ptr<Session>(session)](const agent::StoreReply& answer) {
    const std::shared_ptr<Session> open = weak.lock();
    if (open == nullptr) return;
    agent::AgentDown down;
    *down.mutable_store()->add_replies() = answer;
    open->Send(std::move(down));
  };
  store.Handle(request, node_id, reply);
}

void AgentStreams::Impl::Forget(const std::string& node_id, const Session* session) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = sessions.find(node_id);
  if (found != sessions.end() && found->second.lock().get() == session) sessions.erase(found);
}

void AgentStreams::Impl::EndLargest() {
  if (outgoing_bytes <= kOutgoingBytesOfAllMax) return;
  std::shared_ptr<Session> largest;
  {
    std::lock_guard<std::mutex> lock(mutex);
    size_t most = 0;
    for (const auto& [node_id, weak] : sessions) {
      const std::shared_ptr<Session> session = weak.lock();
      if (session == nullptr || session->outgoing_bytes() <= most) continue;
      most = session->outgoing_bytes();
      largest = session;
    }
  }
  if (largest != nullptr) largest->Drop();
}

void AgentStreams::Impl::LogRefusal(const std::string& node_id, const absl::Status& why) {
  const std::string name = base::Printable(node_id, kRefusedNameMax);
  const absl::Duration now = base::RealClock().Monotonic();
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (refusals_logged.size() >= kRefusalsNotedMax) {
      std::erase_if(refusals_logged,
                    [&](const auto& item) { return now - item.second >= kRefusalLogInterval; });
    }
    const auto logged = refusals_logged.find(name);
    if (logged == refusals_logged.end()) {
      if (refusals_logged.size() >= kRefusalsNotedMax) return;
    } else if (now - logged->second < kRefusalLogInterval) {
      return;
    }
    refusals_logged[name] = now;
  }
  base::LogWarning(absl::StrCat("refused an agent: ", why.message()));
}

AgentStreams::AgentStreams() : impl_(std::make_shared<Impl>()) {}
AgentStreams::~AgentStreams() = default;

void AgentStreams::OnCall(std::function<void(const std::string&)> on_call) {
  impl_->on_call = std::move(on_call);
}

grpc::Service* AgentStreams::Serve(DriverLoop* loop) {
  impl_->loop = loop;
  impl_->service = std::make_unique<Impl::Service>(impl_);
  return impl_->service.get();
}

void AgentStreams::SetAttempts(const std::map<std::string, RunningAttempt>& attempts) {
  impl_->store.SetAttempts(attempts);
}

namespace {

absl::Status OtherAnswer(const std::string& node_id) {
  return absl::InternalError(absl::StrCat("node ", node_id, ": answered another question"));
}

}  // namespace

absl::StatusOr<agent::LogChunk> AgentStreams::Fetch(const std::string& node_id,
                                                    agent::FetchLog request,
                                                    absl::Duration timeout) {
  ASSIGN_OR_RETURN(agent::AgentUp up, impl_->Ask(node_id, timeout, [&](const std::string& id) {
    agent::AgentDown down;
    *down.mutable_fetch_log() = request;
    down.mutable_fetch_log()->set_request_id(id);
    return down;
  }));
  if (!up.has_log()) return OtherAnswer(node_id);
  if (up.log().code() == 0) return std::move(*up.mutable_log());
  return absl::Status(static_cast<absl::StatusCode>(up.log().code()),
                      absl::StrCat("node ", node_id, ": has no log of rank ", request.rank(),
                                   " of attempt ", request.attempt()));
}

absl::StatusOr<agent::SpanChunk> AgentStreams::Fetch(const std::string& node_id,
                                                     agent::FetchSpans request,
                                                     absl::Duration timeout) {
  ASSIGN_OR_RETURN(agent::AgentUp up, impl_->Ask(node_id, timeout, [&](const std::string& id) {
    agent::AgentDown down;
    *down.mutable_fetch_spans() = request;
    down.mutable_fetch_spans()->set_request_id(id);
    return down;
  }));
  if (!up.has_spans()) return OtherAnswer(node_id);
  if (up.spans().code() == 0) return std::move(*up.mutable_spans());
  return absl::Status(static_cast<absl::StatusCode>(up.spans().code()),
                      absl::StrCat("node ", node_id, ": does not run rank ", request.rank(),
                                   " in attempt ", request.attempt()));
}

absl::StatusOr<agent::EvidenceChunk> AgentStreams::Fetch(const std::string& node_id,
                                                         agent::FetchEvidence request,
                                                         absl::Duration timeout) {
  ASSIGN_OR_RETURN(agent::AgentUp up, impl_->Ask(node_id, timeout, [&](const std::string& id) {
    agent::AgentDown down;
    *down.mutable_fetch_evidence() = request;
    down.mutable_fetch_evidence()->set_request_id(id);
    return down;
  }));
  if (!up.has_evidence()) return OtherAnswer(node_id);
  if (up.evidence().code() == 0) return std::move(*up.mutable_evidence());
  return absl::Status(static_cast<absl::StatusCode>(up.evidence().code()),
                      absl::StrCat("node ", node_id, ": rank ", request.rank(), ": ",
                                   base::Printable(up.evidence().message(), 200)));
}

}  // namespace megascale::driver
