#include "gpu/comm/profiler_plugin.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace megascale::cuda {
namespace {

// A call that was launched, and what has been moved for it.
struct LaunchedCall {
  Call call;
  int num_active = 0;                            // transports
  std::map<int, comm::PeerProgress> peers = {};  // by rank in the communicator
};

// Stands for an event of NCCL's, which knows it by its address.
struct Event {
  enum class Kind : uint8_t { kCall, kTransport, kStep };
  Kind kind = Kind::kCall;
  NcclProgress::Shared* shared = nullptr;
  LaunchedCall* call = nullptr;
  // Set in a transport and in its steps.
  int peer = 0;
  bool is_send = false;
  int64_t step_bytes = 0;
  // The bytes of a step that have been counted.
  int64_t ready = 0;
  int64_t transmitted = 0;
};

}  // namespace

class NcclProgress::Shared {
 public:
  explicit Shared(Options options)
      : options_(std::move(options)),
        channel_(options_.progress == nullptr ? -1 : options_.progress->Register(options_.name)) {}

  const std::string& name() const { return options_.name; }
  int rank() const { return options_.rank; }

  void Launch(const Call& call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    launching_ = call;
  }
  // From now on nothing is written: the board may be gone.
  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
  }

  void* StartCall() {
    const std::lock_guard<std::mutex> lock(mutex_);
    // NCCL tells when a call was launched, and never when its last transport has begun: so calls
    // are kept for long enough.
    Slot& slot = calls_[num_calls_++ % calls_.size()];
    if (slot.call.num_active > 0) return nullptr;
    slot.call = {.call = launching_};
    slot.event = {.kind = Event::Kind::kCall, .shared = this, .call = &slot.call};
    return &slot.event;
  }

  void* StartTransport(const ProfilerEvent& description) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto* parent = static_cast<const Event*>(description.parent);
    const auto& given = description.transport;
    const bool is_ours = given.pid == ::getpid() && parent != nullptr &&
                         parent->kind == Event::Kind::kCall && given.peer >= 0 &&
                         static_cast<size_t>(given.peer) < options_.world_ranks.size();
    if (!is_ours) return nullptr;
    Event* event = Add({.kind = Event::Kind::kTransport,
                        .shared = this,
                        .call = parent->call,
                        .peer = given.peer,
                        .is_send = given.is_send != 0,
                        .step_bytes = std::max(0, given.step_bytes)});
    if (event->call->num_active++ == 0) active_.push_back(event->call);
    Show();
    return event;
  }

  void* StartStep(const ProfilerEvent& description) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto* parent = static_cast<const Event*>(description.parent);
    if (parent == nullptr || parent->kind != Event::Kind::kTransport) return nullptr;
    Event step = *parent;
    step.kind = Event::Kind::kStep;
    return Add(step);
  }

  void Record(Event* step, ProfilerState state, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    comm::PeerProgress& peer = PeerOf(*step);
    switch (state) {
      case ProfilerState::kSendWaitsForPeer:
        Raise(step->step_bytes, &step->ready, &peer.send_bytes);
        break;
      case ProfilerState::kSendPosted:
        Raise(bytes, &step->ready, &peer.send_bytes);
        Raise(bytes, &step->transmitted, &peer.transmitted_bytes);
        break;
      case ProfilerState::kReceivePosted:
        Raise(step->step_bytes, &step->ready, &peer.receive_bytes);
        break;
      case ProfilerState::kReceived:
        Raise(bytes, &step->ready, &peer.receive_bytes);
        Raise(bytes, &step->transmitted, &peer.received_bytes);
        break;
      default:
        return;
    }
    Show();
  }

  void Stop(Event* event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (event->kind == Event::Kind::kStep) {
      if (event->is_send) PeerOf(*event).delivered_bytes += event->transmitted;
    } else if (--event->call->num_active == 0) {
      End(event->call);
    }
    events_.erase(event);
    Show();
  }

 private:
  static constexpr size_t kCallsKept = 1024;
  struct Slot {
    LaunchedCall call;
    Event event;
  };

  Event* Add(const Event& event) {
    auto made = std::make_unique<Event>(event);
    Event* const address = made.get();
    events_.emplace(address, std::move(made));
    return address;
  }

  comm::PeerProgress& PeerOf(const Event& event) {
    comm::PeerProgress& peer = event.call->peers[event.peer];
    peer.world_rank = options_.world_ranks[static_cast<size_t>(event.peer)];
    return peer;
  }

  // Counts `bytes` of a step, of which `counted` were counted before. The last step may be smaller
  // than was announced.
  static void Raise(int64_t bytes, int64_t* counted, int64_t* sum) {
    *sum += bytes - std::exchange(*counted, bytes);
  }

  comm::CallEvent EventOf(const Call& call, comm::CallEvent::Kind kind) const {
    return {.kind = kind,
            .operation = call.operation,
            .group = options_.name,
            .sequence = call.sequence,
            .instruction_id = call.instruction_id,
            .peer = call.peer_rank,
            .payload_bytes = call.bytes};
  }

  // The oldest call whose transports are under way is the one that is shown.
  void Show() {
    if (channel_ < 0 || is_closed_ || active_.empty()) return;
    const LaunchedCall& call = *active_.front();
    if (shown_ != &call) {
      options_.progress->Begin(channel_, EventOf(call.call, comm::CallEvent::Kind::kEntered));
      shown_ = &call;
    }
    std::vector<comm::PeerProgress> peers;
    for (const auto& [rank, peer] : call.peers) peers.push_back(peer);
    options_.progress->Update(channel_, peers);
  }

  void End(LaunchedCall* call) {
    std::erase(active_, call);
    if (shown_ != call) return;
    shown_ = nullptr;
    if (is_closed_) return;
    options_.progress->End(channel_, EventOf(call->call, comm::CallEvent::Kind::kLeft));
  }

  const Options options_;
  const int channel_;
  std::mutex mutex_;
  // The rest is guarded by mutex_.
  bool is_closed_ = false;
  Call launching_;
  std::array<Slot, kCallsKept> calls_;  // by number
  uint64_t num_calls_ = 0;
  std::deque<LaunchedCall*> active_;  // in the order in which their transports began
  const LaunchedCall* shown_ = nullptr;
  std::unordered_map<Event*, std::unique_ptr<Event>> events_;  // transports and steps
};

namespace {

// The communicators of this process, by name and rank.
class Registry {
 public:
  using Shared = std::shared_ptr<NcclProgress::Shared>;
  static Registry& Get() {
    static auto* const registry = new Registry();
    return *registry;
  }
  void Add(const Shared& shared) {
    const std::lock_guard<std::mutex> lock(mutex_);
    all_[{shared->name(), shared->rank()}] = shared;
  }
  void Remove(const Shared& shared) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = all_.find({shared->name(), shared->rank()});
    if (found != all_.end() && found->second == shared) all_.erase(found);
  }
  Shared Find(const char* name, int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = all_.find({name == nullptr ? "" : name, rank});
    return found == all_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, int>, Shared> all_;
};

// A context of the plugin keeps what it needs, as long as NCCL has the communicator.
ncclResult_t Init(void** context, int* events, const char* name, int rank) {
  auto shared = Registry::Get().Find(name, rank);
  *context = nullptr;
  *events = 0;
  if (shared == nullptr) return ncclSuccess;  // somebody else's communicator
  *context = new Registry::Shared(std::move(shared));
  *events = static_cast<int>(profiler_event::kCollective | profiler_event::kMessage |
                             profiler_event::kTransport | profiler_event::kStep);
  return ncclSuccess;
}

ncclResult_t InitV4(void** context, int* events, const char* name, uint64_t /*id*/,
                    int /*num_nodes*/, int /*num_ranks*/, int rank, ProfilerLog /*log*/) {
  return Init(context, events, name, rank);
}

ncclResult_t InitV5(void** context, uint64_t /*id*/, int* events, const char* name,
                    int /*num_nodes*/, int /*num_ranks*/, int rank, ProfilerLog /*log*/) {
  return Init(context, events, name, rank);
}

ncclResult_t StartEvent(void* context, void** handle, const ProfilerEvent& event, uint64_t type) {
  *handle = nullptr;
  if (context == nullptr) return ncclSuccess;
  NcclProgress::Shared& shared = **static_cast<Registry::Shared*>(context);
  switch (type) {
    case profiler_event::kCollective:
    case profiler_event::kMessage:
      *handle = shared.StartCall();
      break;
    case profiler_event::kTransport:
      *handle = shared.StartTransport(event);
      break;
    case profiler_event::kStep:
      *handle = shared.StartStep(event);
      break;
    default:
      break;
  }
  return ncclSuccess;
}

ncclResult_t StartEventV4(void* context, void** handle, ProfilerEvent* event) {
  return StartEvent(context, handle, *event, event->type & 0xff);
}

ncclResult_t StartEventV5(void* context, void** handle, ProfilerEvent* event) {
  return StartEvent(context, handle, *event, event->type);
}

ncclResult_t StopEvent(void* handle) {
  auto* const event = static_cast<Event*>(handle);
  if (event != nullptr && event->kind != Event::Kind::kCall) event->shared->Stop(event);
  return ncclSuccess;
}

ncclResult_t RecordState(void* handle, int state, ProfilerStateArgs* args) {
  auto* const event = static_cast<Event*>(handle);
  if (event == nullptr || event->kind != Event::Kind::kStep) return ncclSuccess;
  const int64_t bytes = args == nullptr ? 0 : static_cast<int64_t>(args->bytes);
  event->shared->Record(event, static_cast<ProfilerState>(state), bytes);
  return ncclSuccess;
}

ncclResult_t Finalize(void* context) {
  delete static_cast<Registry::Shared*>(context);
  return ncclSuccess;
}

}  // namespace

NcclProgress::NcclProgress(Options options)
    : shared_(std::make_shared<Shared>(std::move(options))) {
  Registry::Get().Add(shared_);
}

NcclProgress::~NcclProgress() {
  Registry::Get().Remove(shared_);
  shared_->Close();
}

void NcclProgress::Launch(const Call& call) { shared_->Launch(call); }

}  // namespace megascale::cuda

extern "C" {

const megascale::cuda::ProfilerTableV4 ncclProfiler_v4 = {
    .name = "megascale",
    .init = &megascale::cuda::InitV4,
    .start_event = &megascale::cuda::StartEventV4,
    .stop_event = &megascale::cuda::StopEvent,
    .record_state = &megascale::cuda::RecordState,
    .finalize = &megascale::cuda::Finalize};

const megascale::cuda::ProfilerTableV5 ncclProfiler_v5 = {
    .name = "megascale",
    .init = &megascale::cuda::InitV5,
    .start_event = &megascale::cuda::StartEventV5,
    .stop_event = &megascale::cuda::StopEvent,
    .record_state = &megascale::cuda::RecordState,
    .finalize = &megascale::cuda::Finalize};

}  // extern "C"
