#include "gpu/emulator/nccl/emulated_nccl.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu/emulator/emulated_cuda.h"
#include "gpu/emulator/nccl/nccl_calls.h"
#include "gpu/emulator/nccl/nccl_mesh.h"
#include "runtime/base/check.h"

namespace megascale::emulator {
namespace {

// The exchanges that were launched on each device and have not ended, in the order of their
// launches. Only the first one of a device may run.
class LaunchQueues {
 public:
  // Returns the ticket of an exchange that is launched now on a device.
  int64_t Enter(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    queues_[device].push_back(++last_ticket_);
    return last_ticket_;
  }
  // Waits until all earlier exchanges of its device have ended, or this one has.
  void AwaitTurn(int64_t ticket) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] {
      return std::none_of(queues_.begin(), queues_.end(), [&](const auto& entry) {
        const std::deque<int64_t>& queue = entry.second;
        return std::find(queue.begin(), queue.end(), ticket) != queue.end() &&
               queue.front() != ticket;
      });
    });
  }
  void Leave(int64_t ticket) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (auto& [device, queue] : queues_) std::erase(queue, ticket);
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::deque<int64_t>> queues_;  // by device: tickets
  int64_t last_ticket_ = 0;
};

// A group of calls on its way to the stream, which `issue` puts there.
struct Group {
  cudaStream_t stream = nullptr;
  std::vector<NcclCall> calls;
  int64_t number = 0;
  int64_t ticket = 0;  // of the device's queue, if exchanges hold it
};

// One member's end of a communicator. A thread of its own does what the streams have come to.
class Member : public std::enable_shared_from_this<Member> {
 public:
  Member(const EmulatedNcclOptions& options, LaunchQueues* queues, const char* name, int rank,
         int size)
      : options_(options), queues_(queues), mesh_(rank, size), events_(name, rank, size) {
    // As NCCL, a communicator belongs to the device that its maker has as the current one.
    MEGASCALE_CHECK(EmulatedCuda()->cudaGetDevice(&device_) == cudaSuccess);
  }

  void Start(NcclListener root) {
    polls_left_ = options_.in_progress_polls;
    thread_ = std::thread([this, root = std::move(root)]() mutable { Run(std::move(root)); });
  }

  // Marks that a thread is in a function of NCCL's with this communicator.
  void Enter() {
    MEGASCALE_CHECK_MSG(!is_entered_.exchange(true), "two threads use one NCCL communicator");
  }
  void Leave() { is_entered_ = false; }

  ncclResult_t Launch(cudaStream_t stream, std::vector<NcclCall> calls) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      MEGASCALE_CHECK_MSG(has_started_ && deferred_.calls.empty(),
                          "a call of NCCL while another is in progress");
      if (error_ != ncclSuccess) return error_;
      for (NcclCall& call : calls) {
        const bool is_message =
            call.operation == NcclOperation::kSend || call.operation == NcclOperation::kRecv;
        call.event = events_.Launched(is_message);
      }
      deferred_ = {stream, std::move(calls), ++num_calls_};
      polls_left_ = options_.in_progress_polls;
      if (polls_left_ > 0) return ncclInProgress;
    }
    return Issue();
  }

  ncclResult_t State() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (error_ != ncclSuccess) return error_;
      if (!has_started_) return ncclInProgress;
      if (polls_left_ > 0) {
        --polls_left_;
        return ncclInProgress;
      }
      if (is_finalizing_) return num_issued_ == num_ended_ ? ncclSuccess : ncclInProgress;
      if (deferred_.calls.empty()) return ncclSuccess;
    }
    return Issue();
  }

  ncclResult_t Finalize() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_finalizing_ = true;
    polls_left_ = options_.in_progress_polls;
    return ncclInProgress;
  }

  // Ends all exchanges, now and later, and the connections.
  void Abort() {
    mesh_.Abort();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_aborted_ = true;
      for (const int64_t ticket : tickets_) queues_->Leave(ticket);
    }
    changed_.notify_all();
    thread_.join();
    for (Ready& ready : ready_) ready.done(absl::OkStatus());
    ready_.clear();
    mesh_.Disconnect();
  }

  const char* last_error() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return text_.c_str();  // it is set once
  }
  int rank() const { return mesh_.rank(); }
  int size() const { return mesh_.size(); }

 private:
  // A group that a stream has come to.
  struct Ready {
    Group group;
    Done done;
  };

  // Puts the deferred group on its stream.
  ncclResult_t Issue() {
    auto group = std::make_shared<Group>();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      *group = std::exchange(deferred_, Group());
      ++num_issued_;
      if (options_.holds_device && !is_aborted_) {
        group->ticket = queues_->Enter(device_);
        tickets_.insert(group->ticket);
      }
    }
    const auto self = shared_from_this();
    const cudaError_t error = IssueStart(group->stream, [self, group](Done done) {
      self->OnReached({*group, std::move(done)});
    });
    return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
  }

  void OnReached(Ready ready) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!is_aborted_) {
        ready_.push_back(std::move(ready));
        changed_.notify_all();
        return;
      }
    }
    ready.done(absl::OkStatus());
  }

  void Run(NcclListener root) {
    if (!Suffer(0)) return;
    if (!Ended(mesh_.Connect(std::move(root)))) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      has_started_ = true;
    }
    while (true) {
      Ready ready;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return is_aborted_ || !ready_.empty(); });
        if (is_aborted_) return;
        ready = std::move(ready_.front());
        ready_.pop_front();
      }
      absl::Status status;
      if (Suffer(ready.group.number)) {
        NcclOutcome outcome = NcclOutcome::kDone;
        if (options_.holds_device) queues_->AwaitTurn(ready.group.ticket);
        status = RunNcclCalls(mesh_, ready.group.calls, events_, &outcome);
        Ended(outcome);
      }
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        ++num_ended_;
        tickets_.erase(ready.group.ticket);
      }
      if (options_.holds_device) queues_->Leave(ready.group.ticket);
      ready.done(status);
    }
  }

  // Suffers the faults of a call; false: it waited for an abort.
  bool Suffer(int64_t call) {
    for (const NcclFault& fault : options_.faults) {
      if (fault.rank != mesh_.rank() || fault.call != call) continue;
      if (fault.kind == NcclFault::Kind::kDie) ::kill(::getpid(), SIGKILL);
      if (fault.kind == NcclFault::Kind::kFail) {
        SetError(fault.result, absl::StrCat("fault of call ", call));
      }
      mesh_.AwaitAbort();
      return false;
    }
    return true;
  }

  // Turns an outcome into the error of the communicator, and waits for an abort then, as a kernel
  // does; returns whether there was none.
  bool Ended(NcclOutcome outcome) {
    if (outcome == NcclOutcome::kDone) return true;
    if (outcome == NcclOutcome::kPeerGone) SetError(ncclRemoteError, "a socket was closed");
    if (outcome == NcclOutcome::kMismatch) SetError(ncclInternalError, mesh_.mismatch());
    mesh_.AwaitAbort();
    return false;
  }

  void SetError(ncclResult_t error, std::string text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ != ncclSuccess) return;
    text_ = std::move(text);
    error_ = error;
  }

  const EmulatedNcclOptions& options_;
  LaunchQueues* const queues_;
  int device_ = 0;
  NcclMesh mesh_;  // of the thread, but for Abort
  NcclEvents events_;
  std::atomic<bool> is_entered_ = false;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable changed_;  // ready_ or is_aborted_
  // The rest is guarded by mutex_.
  bool has_started_ = false;
  bool is_aborted_ = false;
  bool is_finalizing_ = false;
  int polls_left_ = 0;
  int64_t num_calls_ = 0;
  int64_t num_issued_ = 0;
  int64_t num_ended_ = 0;
  Group deferred_;  // no calls: none
  std::deque<Ready> ready_;
  std::set<int64_t> tickets_;  // of groups that were issued and have not ended
  ncclResult_t error_ = ncclSuccess;
  std::string text_;
};

// What the functions of the table act on.
struct World {
  EmulatedNcclOptions options;
  LaunchQueues queues;
  std::mutex mutex;
  std::map<std::string, NcclListener> listeners;           // guarded by mutex; of ids made here
  std::map<const void*, std::shared_ptr<Member>> members;  // guarded by mutex; by handle
};
std::unique_ptr<World> world;

std::shared_ptr<Member> Find(ncclComm_t handle) {
  const std::lock_guard<std::mutex> lock(world->mutex);
  const auto found = world->members.find(handle);
  MEGASCALE_CHECK_MSG(found != world->members.end(), "use of a NCCL communicator that is gone");
  return found->second;
}

std::shared_ptr<Member> Take(ncclComm_t handle) {
  std::shared_ptr<Member> member = Find(handle);
  const std::lock_guard<std::mutex> lock(world->mutex);
  world->members.erase(handle);
  return member;
}

// A function of NCCL's on one communicator.
template <typename Function>
auto In(ncclComm_t handle, const Function& function) {
  const std::shared_ptr<Member> member = Find(handle);
  member->Enter();
  const auto result = function(*member);
  member->Leave();
  return result;
}

ncclResult_t GetUniqueId(ncclUniqueId* id) {
  NcclListener listener = ListenForNccl();
  *id = {};
  id->internal[0] = static_cast<char>(listener.name.size());
  std::memcpy(id->internal + 1, listener.name.data(), listener.name.size());
  const std::lock_guard<std::mutex> lock(world->mutex);
  world->listeners[listener.name] = std::move(listener);
  return ncclSuccess;
}

ncclResult_t InitRank(ncclComm_t* handle, int size, ncclUniqueId id, int rank,
                      ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0) return ncclInvalidUsage;
  if (rank < 0 || rank >= size) return ncclInvalidArgument;
  NcclListener root;
  root.name.assign(id.internal + 1, static_cast<size_t>(id.internal[0]));
  auto member =
      std::make_shared<Member>(world->options, &world->queues, config->commName, rank, size);
  const auto made_handle = reinterpret_cast<ncclComm_t>(member.get());
  {
    const std::lock_guard<std::mutex> lock(world->mutex);
    if (rank == 0) {
      const auto made = world->listeners.find(root.name);
      if (made == world->listeners.end()) return ncclInvalidArgument;
      root = std::move(made->second);
      world->listeners.erase(made);
    }
    world->members[made_handle] = member;
  }
  *handle = made_handle;
  member->Start(std::move(root));
  return ncclInProgress;
}

// Groups, by thread.
thread_local int group_depth = 0;
thread_local std::vector<std::pair<ncclComm_t, Group>> grouped;

ncclResult_t GroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t GroupEnd() {
  MEGASCALE_CHECK(group_depth > 0);
  if (--group_depth > 0) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  for (auto& entry : std::exchange(grouped, {})) {
    Group& group = entry.second;
    const ncclResult_t launched = In(
        entry.first, [&](Member& it) { return it.Launch(group.stream, std::move(group.calls)); });
    if (launched != ncclSuccess) result = launched;
  }
  return result;
}

ncclResult_t Add(const NcclCall& call, ncclComm_t handle, cudaStream_t stream) {
  if (NcclSizeOf(call.dtype) == 0) return ncclInvalidArgument;
  if (call.count == 0) return ncclSuccess;
  if (group_depth == 0) {
    return In(handle, [&](Member& it) { return it.Launch(stream, {call}); });
  }
  (void)Find(handle);
  auto found = std::find_if(grouped.begin(), grouped.end(),
                            [&](const auto& entry) { return entry.first == handle; });
  if (found == grouped.end()) {
    grouped.push_back({handle, {stream, {}, 0}});
    found = std::prev(grouped.end());
  }
  MEGASCALE_CHECK_MSG(found->second.stream == stream, "a NCCL group on two streams");
  found->second.calls.push_back(call);
  return ncclSuccess;
}

// Only sums of floating-point numbers are emulated.
bool HasSum(ncclRedOp_t operation, ncclDataType_t dtype) {
  return operation == ncclSum && dtype != ncclInt32;
}

void AddCommunicators(cuda::NcclApi& api) {
  api.ncclGetVersion = [](int* version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
  };
  api.ncclGetErrorString = [](ncclResult_t result) -> const char* {
    constexpr const char* kTexts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
    return kTexts[result];
  };
  api.ncclGetLastError = [](ncclComm_t handle) -> const char* {
    return handle == nullptr ? "" : Find(handle)->last_error();
  };
  api.ncclGetUniqueId = &GetUniqueId;
  api.ncclCommInitRankConfig = &InitRank;
  api.ncclCommFinalize = [](ncclComm_t handle) {
    return In(handle, [](Member& it) { return it.Finalize(); });
  };
  api.ncclCommAbort = [](ncclComm_t handle) {
    Take(handle)->Abort();
    return ncclSuccess;
  };
  api.ncclCommDestroy = api.ncclCommAbort;
  api.ncclCommGetAsyncError = [](ncclComm_t handle, ncclResult_t* error) {
    *error = In(handle, [](Member& it) { return it.State(); });
    return ncclSuccess;
  };
  api.ncclCommCount = [](const ncclComm_t handle, int* count) {
    *count = Find(handle)->size();
    return ncclSuccess;
  };
  api.ncclCommUserRank = [](const ncclComm_t handle, int* rank) {
    *rank = Find(handle)->rank();
    return ncclSuccess;
  };
}

void AddExchanges(cuda::NcclApi& api) {
  api.ncclAllReduce = [](const void* input, void* output, size_t count, ncclDataType_t dtype,
                         ncclRedOp_t sum, ncclComm_t handle, cudaStream_t stream) {
    if (!HasSum(sum, dtype)) return ncclInvalidArgument;
    return Add({NcclOperation::kAllReduce, input, output, count, dtype}, handle, stream);
  };
  api.ncclReduceScatter = [](const void* input, void* output, size_t count, ncclDataType_t dtype,
                             ncclRedOp_t sum, ncclComm_t handle, cudaStream_t stream) {
    if (!HasSum(sum, dtype)) return ncclInvalidArgument;
    return Add({NcclOperation::kReduceScatter, input, output, count, dtype}, handle, stream);
  };
  api.ncclAllGather = [](const void* input, void* output, size_t count, ncclDataType_t dtype,
                         ncclComm_t handle, cudaStream_t stream) {
    return Add({NcclOperation::kAllGather, input, output, count, dtype}, handle, stream);
  };
  api.ncclBroadcast = [](const void* input, void* output, size_t count, ncclDataType_t dtype,
                         int root, ncclComm_t handle, cudaStream_t stream) {
    return Add({NcclOperation::kBroadcast, input, output, count, dtype, root}, handle, stream);
  };
  api.ncclReduce = [](const void* input, void* output, size_t count, ncclDataType_t dtype,
                      ncclRedOp_t sum, int root, ncclComm_t handle, cudaStream_t stream) {
    if (!HasSum(sum, dtype)) return ncclInvalidArgument;
    return Add({NcclOperation::kReduce, input, output, count, dtype, root}, handle, stream);
  };
  api.ncclSend = [](const void* input, size_t count, ncclDataType_t dtype, int peer,
                    ncclComm_t handle, cudaStream_t stream) {
    return Add({NcclOperation::kSend, input, nullptr, count, dtype, peer}, handle, stream);
  };
  api.ncclRecv = [](void* output, size_t count, ncclDataType_t dtype, int peer, ncclComm_t handle,
                    cudaStream_t stream) {
    return Add({NcclOperation::kRecv, nullptr, output, count, dtype, peer}, handle, stream);
  };
}

cuda::NcclApi MakeTable() {
  cuda::NcclApi api;
  AddCommunicators(api);
  AddExchanges(api);
  api.ncclGroupStart = &GroupStart;
  api.ncclGroupEnd = &GroupEnd;
  return api;
}

}  // namespace

EmulatedNccl::EmulatedNccl(const EmulatedNcclOptions& options) {
  MEGASCALE_CHECK_MSG(world == nullptr, "two emulated NCCLs in one process");
  world = std::make_unique<World>();
  world->options = options;
}

EmulatedNccl::~EmulatedNccl() {
  MEGASCALE_CHECK_MSG(world->members.empty(), "a NCCL communicator is left");
  world.reset();
}

const cuda::NcclApi& EmulatedNccl::api() {
  static const cuda::NcclApi table = MakeTable();
  return table;
}

}  // namespace megascale::emulator
