#include "controlplane/agent/service/driver_stream.h"

#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "controlplane/protocol/recent_texts.h"
#include "controlplane/security/driver_channel.h"
#include "controlplane/security/probe.h"
#include "proto/agent.grpc.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace megascale::agent {
namespace {

constexpr absl::Duration kBackoffFirst = absl::Milliseconds(100);
constexpr absl::Duration kBackoffMax = absl::Seconds(1);
// The longest wait before asking again a driver that refuses this agent, and between log lines
// about it.
constexpr absl::Duration kRefusedBackoffMax = absl::Seconds(5);
constexpr absl::Duration kRefusalLogInterval = absl::Minutes(1);
// How long a driver may be silent before that is worth a log line, and between these lines.
constexpr absl::Duration kAbsenceMin = absl::Seconds(5);
constexpr absl::Duration kAbsenceLogInterval = absl::Minutes(1);
constexpr char kGoesOn[] = "; this agent keeps trying";
constexpr absl::Duration kWriteTimeout = absl::Seconds(10);
constexpr absl::Duration kCloseTimeout = absl::Seconds(5);
constexpr int kReceiveBytesMax = 64 << 20;

grpc::ChannelArguments MakeArguments(const client::Address& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // This file reopens a failed stream itself. If gRPC 1.51 retried a stream on a dead connection,
  // it would report every write of the stream as failed, and yet send it.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(kReceiveBytesMax);
  if (!address.is_unix()) {  // a machine that vanished closes no connection
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  }
  return arguments;
}

// True if the driver's side answered, and not the connection failed.
bool IsRefusal(const absl::Status& end) {
  return absl::IsAlreadyExists(end) || absl::IsResourceExhausted(end) ||
         absl::IsFailedPrecondition(end) || absl::IsUnauthenticated(end) ||
         absl::IsUnimplemented(end);
}

// Returns why the agent must end; OK: it goes on.
absl::Status EndFor(const absl::Status& stream_end, bool taken) {
  switch (stream_end.code()) {
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kPermissionDenied:
      return stream_end;
    case absl::StatusCode::kFailedPrecondition:
      // Another version of the driver took over. Workers train without a driver, so they go on
      // until the agent is drained or a driver comes that speaks its version.
      return taken ? absl::OkStatus() : stream_end;
    case absl::StatusCode::kAlreadyExists:
      // The driver gave this agent up, with all of its jobs, before it took the other one.
      if (!taken) return absl::OkStatus();
      return absl::AbortedError(
          absl::StrCat(stream_end.message(), "; the driver has given this agent up, so it ends"));
    default:
      return absl::OkStatus();
  }
}

}  // namespace

struct DriverStream::Channel {
  std::unique_ptr<security::DriverChannel> driver;
  std::unique_ptr<v1::AgentService::Stub> stub;  // of the newest stream
};

// State shared by the stream's callbacks and its owner.
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
  bool taken = false;    // by the driver, at some time
  int num_refusals = 0;  // streams that the driver ended before it sent anything

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
    if (!shared_->opened) shared_->last_end = absl::OkStatus();  // of a stream before this one
    shared_->opened = true;
    shared_->taken = true;
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
      if (!shared->opened && IsRefusal(shared->last_end)) ++shared->num_refusals;
      shared->opened = false;
      shared->writing_since.reset();
    }
    // The owner is notified only after the deletion: the context holds the channel, and the process
    // may end as soon as the owner has released it. gRPC aborts if its thread still works then.
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

// Finds out why no driver answers over TCP, which gRPC does not tell, and logs it. Works in a
// thread of its own, because the agent must not wait.
class DriverStream::Probe {
 public:
  Probe(const DriverStreamOptions& options, std::shared_ptr<Shared> shared)
      : thread_([this, address = options.address, tls = options.tls, shared = std::move(shared)] {
          const absl::Status why =
              security::ProbeDriver(address, tls, security::Role::kAgent, kProbeTimeout);
          const bool is_back = [&] {
            absl::MutexLock lock(&shared->mutex);
            return shared->opened;
          }();
          if (!why.ok() && !is_back) base::LogWarning(absl::StrCat(why.message(), kGoesOn));
          done_ = true;
        }) {}
  ~Probe() { thread_.join(); }

  bool is_done() const { return done_; }

 private:
  std::atomic<bool> done_ = false;
  std::thread thread_;
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
  security::DriverChannelOptions wanted;
  wanted.address = options.address;
  wanted.tls = options.tls;
  wanted.insecure = options.insecure;
  wanted.role = security::Role::kAgent;
  auto channel = std::make_unique<Channel>();
  ASSIGN_OR_RETURN(channel->driver,
                   security::DriverChannel::Create(wanted, MakeArguments(options.address)));
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

absl::Status DriverStream::CheckAddress() const {
  const absl::Status status = channel_->driver->Check();
  return absl::IsUnauthenticated(status) ? status : absl::OkStatus();
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
  events.ended = EndFor(shared_->last_end, shared_->taken);
  if (events.ended.ok() && shared_->num_refusals != num_refusals_) {
    num_refusals_ = shared_->num_refusals;
    LogRefusal(base::RealClock().Monotonic());
  }
  return events;
}

// Connects; false: try later. Another user may have made the socket since this agent started.
// Nothing is sent to that user's process, and the workers go on.
bool DriverStream::Connect(absl::Duration now) {
  absl::StatusOr<std::shared_ptr<grpc::Channel>> connected = channel_->driver->Connect();
  connect_error_ = connected.status();
  if (connected.ok()) {
    channel_->stub = v1::AgentService::NewStub(*connected);
    return true;
  }
  if (absl::IsUnauthenticated(connected.status()) && now >= warn_at_) {
    warn_at_ = now + kRefusalLogInterval;
    base::LogWarning(absl::StrCat("refuses the driver: ", connected.status().message()));
  }
  return false;
}

// Requires: the mutex is held.
void DriverStream::LogRefusal(absl::Duration now) {
  const absl::Status& why = shared_->last_end;
  if (why.code() == refusal_logged_ && now < refusal_logged_at_ + kRefusalLogInterval) return;
  refusal_logged_ = why.code();
  refusal_logged_at_ = now;
  const absl::Duration wait = std::max(absl::ZeroDuration(), open_at_ - now);
  base::LogWarning(absl::StrCat("the driver refuses this agent (", why.message(),
                                "); asks again in ",
                                absl::FormatDuration(absl::Trunc(wait, absl::Milliseconds(1))),
                                ", later every ", absl::FormatDuration(kRefusedBackoffMax)));
}

// Requires: the mutex is held. What the driver refuses has log lines of its own.
void DriverStream::LogAbsence(absl::Duration now) {
  if (shared_->opened) {
    next_absence_log_ = absl::InfiniteDuration();
    return;
  }
  if (next_absence_log_ == absl::InfiniteDuration()) next_absence_log_ = now + kAbsenceMin;
  if (now < next_absence_log_) return;
  next_absence_log_ = now + kAbsenceLogInterval;
  if (options_.address.is_unix()) {
    if (!connect_error_.ok() && !absl::IsUnavailable(connect_error_)) return;
    base::LogWarning(absl::StrCat("no driver can be reached at ", options_.address.text, ": ",
                                  connect_error_.ok()
                                      ? absl::string_view("it takes connections but is silent")
                                      : connect_error_.message(),
                                  kGoesOn));
  } else if (probe_ == nullptr || probe_->is_done()) {
    probe_ = std::make_unique<Probe>(options_, shared_);
  }
}

void DriverStream::Maintain(absl::Duration now) {
  // Released after the lock: the end of its channel waits for gRPC's thread, which may want the
  // lock.
  std::unique_ptr<v1::AgentService::Stub> before;
  absl::MutexLock lock(&shared_->mutex);
  LogAbsence(now);
  if (shared_->num_reactors == 0 && now >= open_at_) {
    open_at_ = now + backoff_;
    backoff_ =
        std::min(2 * backoff_, IsRefusal(shared_->last_end) ? kRefusedBackoffMax : kBackoffMax);
    // Messages of the stream before are stale, because a new stream begins with the whole state.
    shared_->inbound.clear();
    shared_->outbound.clear();
    was_open_ = false;
    before = std::move(channel_->stub);
    if (!Connect(now)) return;
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
  if (shared_->num_reactors == 0) return open_at_;
  // A write before the stream opens may wait for the driver for any time.
  if (!shared_->opened || !shared_->writing_since.has_value()) return absl::InfiniteDuration();
  return *shared_->writing_since + kWriteTimeout;
}

void DriverStream::SendActual(v1::ActualState state) {
  absl::MutexLock lock(&shared_->mutex);
  // The texts of a report count as sent once it was made.
  if (shared_->actual.has_value()) protocol::KeepRecentTexts(*shared_->actual, &state);
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
