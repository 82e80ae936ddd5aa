#include "controlplane/agent/driver_stream.h"

#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "controlplane/security/credentials.h"
#include "proto/agent.grpc.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace megascale::agent {
namespace {

constexpr absl::Duration kBackoffFirst = absl::Milliseconds(100);
constexpr absl::Duration kBackoffMax = absl::Seconds(1);
constexpr absl::Duration kWriteTimeout = absl::Seconds(10);
constexpr absl::Duration kCloseTimeout = absl::Seconds(5);
constexpr int kReceiveBytesMax = 64 << 20;

grpc::ChannelArguments MakeArguments(const client::Address& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A stream that failed is opened anew here. Where gRPC 1.51 does it by itself, on a connection
  // that turns out to be dead, every write of the stream tells that it failed, and is sent.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(kReceiveBytesMax);
  if (!address.is_unix()) {  // a machine that vanished closes no connection
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  }
  return arguments;
}

}  // namespace

struct DriverStream::Channel {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::AgentService::Stub> stub;
};

// What the stream's callbacks and its owner share.
struct DriverStream::Shared {
  absl::Mutex mutex;
  base::UniqueFd event;
  Reactor* reactor = nullptr;  // of the stream that is open or opening; null: none
  int num_reactors = 0;        // with those that are being deleted
  bool opened = false;         // its first message came
  std::vector<v1::AgentDown> inbound;
  std::optional<v1::ActualState> actual;
  std::deque<v1::AgentUp> outbound;
  std::optional<absl::Duration> writing_since;
  absl::Status last_end;

  void Notify() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(event.get(), &one, sizeof(one));
  }
};

// One stream. Deletes itself when it is done.
class DriverStream::Reactor : public grpc::ClientBidiReactor<v1::AgentUp, v1::AgentDown> {
 public:
  Reactor(std::shared_ptr<Shared> shared, const v1::Hello& hello) : shared_(std::move(shared)) {
    *writing_.mutable_hello() = hello;
    context_.set_wait_for_ready(true);
  }

  // Requires: the mutex is held, also for Pump and Cancel.
  void Start(v1::AgentService::Stub* stub) {
    stub->async()->Connect(&context_, this);
    AddHold();  // Pump writes from outside of the callbacks
    shared_->writing_since = base::RealClock().Monotonic();
    StartWrite(&writing_);
    StartRead(&reading_);
    StartCall();
  }

  void Pump() {
    if (closed_ || shared_->writing_since.has_value()) return;
    writing_.Clear();
    if (!shared_->outbound.empty()) {
      writing_ = std::move(shared_->outbound.front());
      shared_->outbound.pop_front();
    } else if (shared_->actual.has_value()) {
      *writing_.mutable_actual() = *std::move(shared_->actual);
      shared_->actual.reset();
    } else {
      return;
    }
    shared_->writing_since = base::RealClock().Monotonic();
    StartWrite(&writing_);
  }

  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    absl::MutexLock lock(&shared_->mutex);
    if (!ok) {
      closed_ = true;
      RemoveHold();
      return;
    }
    shared_->opened = true;
    shared_->inbound.push_back(std::move(reading_));
    reading_.Clear();
    shared_->Notify();
    StartRead(&reading_);
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&shared_->mutex);
    shared_->writing_since.reset();
    if (ok) Pump();
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<Shared> shared = shared_;
    {
      absl::MutexLock lock(&shared->mutex);
      shared->last_end =
          absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
      shared->reactor = nullptr;
      shared->opened = false;
      shared->writing_since.reset();
    }
    // Told after that: the context holds the channel, and the process may end as soon as the owner
    // has let go of it. gRPC aborts where its thread still works then.
    delete this;
    absl::MutexLock lock(&shared->mutex);
    --shared->num_reactors;
    shared->Notify();
  }

 private:
  const std::shared_ptr<Shared> shared_;
  grpc::ClientContext context_;
  v1::AgentUp writing_;
  v1::AgentDown reading_;
  bool closed_ = false;
};

DriverStream::DriverStream(DriverStreamOptions options, std::unique_ptr<Channel> channel)
    : options_(std::move(options)),
      channel_(std::move(channel)),
      shared_(std::make_shared<Shared>()),
      backoff_(kBackoffFirst) {
  shared_->event = base::UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

absl::StatusOr<std::unique_ptr<DriverStream>> DriverStream::Create(
    const DriverStreamOptions& options) {
  ASSIGN_OR_RETURN(const auto credentials,
                   security::MakeChannelCredentials(options.address, options.tls, options.insecure,
                                                    security::Role::kAgent));
  auto channel = std::make_unique<Channel>();
  channel->channel =
      grpc::CreateCustomChannel(options.address.text, credentials, MakeArguments(options.address));
  channel->stub = v1::AgentService::NewStub(channel->channel);
  return std::unique_ptr<DriverStream>(new DriverStream(options, std::move(channel)));
}

DriverStream::~DriverStream() {
  const auto is_done = [this] {
    absl::MutexLock lock(&shared_->mutex);
    return shared_->num_reactors == 0;
  };
  {
    absl::MutexLock lock(&shared_->mutex);
    if (shared_->reactor != nullptr) shared_->reactor->Cancel();
  }
  const absl::Duration end = base::RealClock().Monotonic() + kCloseTimeout;
  for (absl::Duration now = base::RealClock().Monotonic(); !is_done() && now < end;
       now = base::RealClock().Monotonic()) {
    pollfd entry = {shared_->event.get(), POLLIN, 0};
    ::poll(&entry, 1, base::PollMilliseconds(end - now));
    uint64_t count;
    [[maybe_unused]] const ssize_t got = ::read(shared_->event.get(), &count, sizeof(count));
  }
}

int DriverStream::events_fd() const { return shared_->event.get(); }

DriverStream::Events DriverStream::Take() {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = ::read(shared_->event.get(), &count, sizeof(count));
  Events events;
  absl::MutexLock lock(&shared_->mutex);
  events.messages.swap(shared_->inbound);
  events.opened = shared_->opened && !was_open_;
  if (was_open_ && !shared_->opened) {
    base::LogWarning(absl::StrCat("lost the driver (", shared_->last_end.message(),
                                  "); its work goes on, trying to connect"));
  }
  was_open_ = shared_->opened;
  if (events.opened) backoff_ = kBackoffFirst;
  if (absl::IsAborted(shared_->last_end) || absl::IsFailedPrecondition(shared_->last_end)) {
    events.ended = shared_->last_end;
  }
  return events;
}

void DriverStream::Maintain(absl::Duration now) {
  absl::MutexLock lock(&shared_->mutex);
  if (shared_->reactor == nullptr && now >= open_at_) {
    open_at_ = now + backoff_;
    backoff_ = std::min(2 * backoff_, kBackoffMax);
    // What is left of the stream before it is stale: the new one begins with the whole state.
    shared_->inbound.clear();
    shared_->outbound.clear();
    was_open_ = false;
    shared_->reactor = new Reactor(shared_, options_.hello);
    ++shared_->num_reactors;
    shared_->reactor->Start(channel_->stub.get());
  } else if (shared_->opened && shared_->writing_since.has_value() &&
             now - *shared_->writing_since > kWriteTimeout) {
    base::LogWarning("the driver takes nothing any more; connecting anew");
    shared_->reactor->Cancel();
  }
}

absl::Duration DriverStream::NextWake() const {
  absl::MutexLock lock(&shared_->mutex);
  if (shared_->reactor == nullptr) return open_at_;
  if (!shared_->writing_since.has_value()) return absl::InfiniteDuration();
  return *shared_->writing_since + kWriteTimeout;
}

void DriverStream::SendActual(v1::ActualState state) {
  absl::MutexLock lock(&shared_->mutex);
  shared_->actual = std::move(state);
  if (shared_->reactor != nullptr) shared_->reactor->Pump();
}

void DriverStream::Send(v1::AgentUp message) {
  absl::MutexLock lock(&shared_->mutex);
  if (!shared_->opened) return;  // sent again when there is a stream
  shared_->outbound.push_back(std::move(message));
  shared_->reactor->Pump();
}

}  // namespace megascale::agent
