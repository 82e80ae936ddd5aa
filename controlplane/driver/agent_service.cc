#include "controlplane/driver/agent_service.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/driver_loop.h"
#include "proto/agent.grpc.pb.h"
#include "runtime/comm/embedded_store.h"

namespace megascale::driver {
namespace {

namespace pb = megascale::agent::v1;

constexpr int kProtocolVersion = 1;
// Replies and requests that wait to be written to one agent; beyond it the stream is ended, and the
// agent asks again on its next one.
constexpr size_t kOutgoingMax = 100'000;

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

absl::Status CheckHello(const pb::Hello& hello) {
  if (hello.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", hello.node_id(), ": speaks version ", hello.protocol_version(),
                     " of the agents' protocol, this driver speaks ", kProtocolVersion,
                     "; use one version of megascale on all machines"));
  }
  if (hello.node_id().empty() || hello.incarnation().empty() || hello.num_slots() < 0) {
    return absl::InvalidArgumentError(
        "the first message of an agent needs node_id, incarnation and num_slots");
  }
  return absl::OkStatus();
}

}  // namespace

// State shared by all streams. `mutex` may be held when a session's is taken, never the other way.
struct AgentStreams::Impl {
  class Session;
  class Service;

  void Answer(const pb::LogChunk& chunk);
  void HandleStore(const pb::StoreRequest& request, const std::shared_ptr<Session>& session);

  DriverLoop* loop = nullptr;
  std::unique_ptr<grpc::Service> service;
  comm::InProcessStore store;
  std::mutex mutex;
  std::map<std::string, int64_t> attempts;
  std::map<std::string, std::weak_ptr<Session>> sessions;     // by node
  std::map<std::string, std::promise<pb::LogChunk>> fetches;  // by request id
  int64_t num_fetches = 0;
};

// One stream. gRPC calls its reactions; it lives until OnDone and as long as anybody holds it.
class AgentStreams::Impl::Session : public AgentLink,
                                    public grpc::ServerBidiReactor<pb::AgentUp, pb::AgentDown>,
                                    public std::enable_shared_from_this<Session> {
 public:
  explicit Session(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  void Begin() {
    self_ = shared_from_this();
    StartRead(&up_);
  }

  void SendDesired(const pb::DesiredState& desired) override {
    std::lock_guard<std::mutex> lock(mutex_);
    desired_ = desired;
    WriteNext();
  }

  void Close(const absl::Status& why) override {
    std::lock_guard<std::mutex> lock(mutex_);
    FinishLocked(why);
  }

  void Send(pb::AgentDown down) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (outgoing_.size() >= kOutgoingMax) {
      FinishLocked(absl::ResourceExhaustedError("this agent does not read what it is sent"));
      return;
    }
    outgoing_.push_back(std::move(down));
    WriteNext();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Close(absl::OkStatus());
      return;
    }
    if (node_id_.empty()) {
      OnHello();
    } else if (up_.has_actual()) {
      // The next message is read once this report is digested: a fast agent waits, not the memory.
      impl_->loop->OnReport(node_id_, std::move(*up_.mutable_actual()),
                            [session = shared_from_this()] { session->ReadNext(); });
    } else {
      if (up_.has_log()) impl_->Answer(up_.log());
      for (const auto& request : up_.store().requests()) {
        impl_->HandleStore(request, shared_from_this());
      }
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

  void OnDone() override {
    if (!node_id_.empty()) impl_->loop->OnGone(node_id_, this);
    // The last reference may be this one: it is let go of after the lock.
    const std::shared_ptr<Session> last = std::move(self_);
    std::lock_guard<std::mutex> lock(mutex_);
    finished_ = true;
  }

 private:
  void OnHello() {
    const pb::Hello& hello = up_.hello();
    if (absl::Status status = CheckHello(hello); !status.ok()) {
      Close(status);
      return;
    }
    node_id_ = hello.node_id();
    {
      std::lock_guard<std::mutex> lock(impl_->mutex);
      impl_->sessions[node_id_] = shared_from_this();
    }
    impl_->loop->OnHello(hello, shared_from_this(),
                         [session = shared_from_this()] { session->ReadNext(); });
  }

  void ReadNext() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return;
    up_.Clear();
    StartRead(&up_);
  }

  void WriteNext() {
    if (writing_ || finished_) return;
    if (desired_.has_value()) {
      down_.Clear();
      *down_.mutable_desired() = *std::move(desired_);
      desired_.reset();
    } else if (!outgoing_.empty()) {
      down_ = std::move(outgoing_.front());
      outgoing_.pop_front();
    } else {
      return;
    }
    writing_ = true;
    StartWrite(&down_);
  }

  // A write in flight is waited for: gRPC takes the status after it.
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
  std::shared_ptr<Session> self_;
  std::string node_id_;  // set by the first message
  pb::AgentUp up_;

  std::mutex mutex_;
  pb::AgentDown down_;
  std::optional<pb::DesiredState> desired_;
  std::deque<pb::AgentDown> outgoing_;
  std::optional<absl::Status> final_;
  bool writing_ = false;
  bool finished_ = false;
};

class AgentStreams::Impl::Service : public pb::AgentService::CallbackService {
 public:
  explicit Service(std::weak_ptr<Impl> impl) : impl_(std::move(impl)) {}

  grpc::ServerBidiReactor<pb::AgentUp, pb::AgentDown>* Connect(
      grpc::CallbackServerContext* context) override {
    auto session = std::make_shared<Session>(impl_.lock());
    session->Begin();
    return session.get();
  }

 private:
  const std::weak_ptr<Impl> impl_;
};

void AgentStreams::Impl::Answer(const pb::LogChunk& chunk) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto it = fetches.find(chunk.request_id());
  if (it == fetches.end()) return;
  it->second.set_value(chunk);
  fetches.erase(it);
}

void AgentStreams::Impl::HandleStore(const pb::StoreRequest& request,
                                     const std::shared_ptr<Session>& session) {
  const auto reply = [weak = std::weak_ptr<Session>(session)](const pb::StoreReply& answer) {
    const std::shared_ptr<Session> open = weak.lock();
    if (open == nullptr) return;
    pb::AgentDown down;
    *down.mutable_store()->add_replies() = answer;
    open->Send(std::move(down));
  };
  // Held over the call, so that no request comes to the store after its job was dropped.
  std::lock_guard<std::mutex> lock(mutex);
  const auto it = attempts.find(request.job_id());
  if (it != attempts.end() && it->second == request.attempt()) {
    store.Handle(request, reply);
    return;
  }
  pb::StoreReply refusal;
  refusal.set_request_id(request.request_id());
  refusal.set_code(static_cast<int>(absl::StatusCode::kAborted));
  refusal.set_message(absl::StrCat("attempt ", request.attempt(), " of job ", request.job_id(),
                                   " is not the present one"));
  reply(refusal);
}

AgentStreams::AgentStreams() : impl_(std::make_shared<Impl>()) {}
AgentStreams::~AgentStreams() = default;

grpc::Service* AgentStreams::Serve(DriverLoop* loop) {
  impl_->loop = loop;
  impl_->service = std::make_unique<Impl::Service>(impl_);
  return impl_->service.get();
}

void AgentStreams::SetAttempts(const std::map<std::string, int64_t>& attempts) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  const std::map<std::string, int64_t> before = std::exchange(impl_->attempts, attempts);
  for (const auto& [job_id, attempt] : attempts) {
    impl_->store.DropAttemptsBefore(job_id, attempt);
  }
  for (const auto& [job_id, attempt] : before) {
    if (attempts.count(job_id) == 0) impl_->store.DropJob(job_id);
  }
}

absl::StatusOr<pb::LogChunk> AgentStreams::Fetch(const std::string& node_id, pb::FetchLog request,
                                                 absl::Duration timeout) {
  std::shared_ptr<Impl::Session> session;
  std::future<pb::LogChunk> future;
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    const auto it = impl_->sessions.find(node_id);
    if (it != impl_->sessions.end()) session = it->second.lock();
    if (session == nullptr) {
      return absl::UnavailableError(absl::StrCat("node ", node_id, ": is not connected"));
    }
    request.set_request_id(absl::StrCat("log-", ++impl_->num_fetches));
    future = impl_->fetches[request.request_id()].get_future();
  }
  pb::AgentDown down;
  *down.mutable_fetch_log() = request;
  session->Send(std::move(down));
  const bool answered =
      future.wait_for(absl::ToChronoMilliseconds(timeout)) == std::future_status::ready;
  if (!answered) {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    if (impl_->fetches.erase(request.request_id()) > 0) {
      return absl::DeadlineExceededError(absl::StrCat(
          "node ", node_id, ": did not send its log within ", absl::FormatDuration(timeout)));
    }
  }
  pb::LogChunk chunk = future.get();
  if (chunk.code() == 0) return chunk;
  return absl::Status(static_cast<absl::StatusCode>(chunk.code()),
                      absl::StrCat("node ", node_id, ": has no log of rank ", request.rank(),
                                   " of attempt ", request.attempt()));
}

}  // namespace megascale::driver
