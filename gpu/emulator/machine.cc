#include "gpu/emulator/machine.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace megascale::emulator {
namespace {

// How long the machine lets the host get ahead, and one time in how many.
constexpr auto kLateness = std::chrono::microseconds(50);
constexpr uint64_t kLateOneIn = 16;

// A stream with more entries makes the host wait, as CUDA's do.
constexpr size_t kEntriesMax = 1024;

constexpr int kSharedBytesFree = 48 << 10;  // of a block, without asking
constexpr unsigned kThreadsMax = 1024;      // of a block
constexpr unsigned kGridMax = 65535;        // in y and z

}  // namespace

void LogRefusal(absl::string_view what) {
  std::fprintf(stderr, "emulated CUDA: %s\n", std::string(what).c_str());
}

Machine::Machine(const EmulatedOptions& options)
    : options_(options),
      errors_(static_cast<size_t>(options.num_devices), cudaSuccess),
      random_(options.seed) {
  thread_ = std::thread(&Machine::Run, this);
}

Machine::~Machine() {
  {
    const Lock lock(mutex_);
    const std::string left = absl::StrCat(streams_.size(), " streams, ", events_.size(),
                                          " events, ", graphs_.size(), " graphs");
    MEGASCALE_CHECK_MSG(streams_.empty() && events_.empty() && graphs_.empty(),
                        absl::StrCat("never destroyed: ", left));
    closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

int64_t Machine::num_work() const {
  const Lock lock(mutex_);
  return num_work_;
}

cudaError_t Machine::ErrorOf(int device) const {
  const Lock lock(mutex_);
  return errors_[static_cast<size_t>(device)];
}

// Memory

cudaError_t Machine::Allocate(int device, void** address, size_t bytes) {
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (memory_.used_bytes(device) + bytes > options_.memory_bytes) return cudaErrorMemoryAllocation;
  *address = memory_.Allocate(device, bytes);
  return *address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t Machine::Free(int device, void* address) {
  if (address == nullptr) return cudaSuccess;
  AwaitFree(device);
  if (memory_.Free(address)) return cudaSuccess;
  LogRefusal("cudaFree of memory that is not allocated");
  return cudaErrorInvalidValue;
}

cudaError_t Machine::FreeHost(int device, void* address) {
  if (address == nullptr) return cudaSuccess;
  AwaitFree(device);
  if (memory_.FreeHost(address)) return cudaSuccess;
  LogRefusal("cudaFreeHost of memory that is not allocated");
  return cudaErrorInvalidValue;
}

cudaError_t Machine::IssueChecked(Stream* stream, const char* what, Node node) {
  Lock lock(mutex_);
  if (!Knows(stream)) {
    LogRefusal(absl::StrCat(what, " on a stream that does not exist, or the default stream"));
    return cudaErrorInvalidResourceHandle;
  }
  return IssueLocked(lock, stream, std::move(node));
}

cudaError_t Machine::Copy(void* to, const void* from, size_t bytes, Stream* stream) {
  for (const void* end : {static_cast<const void*>(to), from}) {
    const auto found = memory_.Find(end, bytes);
    if (found.ok()) continue;
    LogRefusal(absl::StrCat("cudaMemcpyAsync: ", found.status().message()));
    return cudaErrorInvalidValue;
  }
  // Found again when it runs: a graph may outlive its memory.
  const auto copy = [this, to, from, bytes]() -> absl::Status {
    const auto there = memory_.Find(to, bytes), here = memory_.Find(from, bytes);
    if (!there.ok()) return there.status();
    if (!here.ok()) return here.status();
    std::memmove(*there, *here, bytes);
    return absl::OkStatus();
  };
  const bool is_host_copy = memory_.IsDevice(to) != memory_.IsDevice(from);
  return IssueChecked(stream, "cudaMemcpyAsync", {.work = copy, .is_host_copy = is_host_copy});
}

cudaError_t Machine::Fill(void* to, int value, size_t bytes, Stream* stream) {
  const auto found = memory_.Find(to, bytes);
  if (!found.ok() || !memory_.IsDevice(to)) {
    LogRefusal(
        absl::StrCat("cudaMemsetAsync: ", found.ok() ? "host memory" : found.status().message()));
    return cudaErrorInvalidValue;
  }
  const auto fill = [this, to, value, bytes]() -> absl::Status {
    const auto there = memory_.Find(to, bytes);
    if (!there.ok()) return there.status();
    std::memset(*there, value, bytes);
    return absl::OkStatus();
  };
  return IssueChecked(stream, "cudaMemsetAsync", {.work = fill});
}

// Streams

Stream* Machine::MakeStream(int device) {
  auto* const stream = new Stream{.device = device};
  const Lock lock(mutex_);
  streams_.push_back(stream);
  return stream;
}

cudaError_t Machine::DestroyStream(Stream* stream) {
  Lock lock(mutex_);
  if (!Knows(stream)) return cudaErrorInvalidResourceHandle;
  if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  changed_.wait(lock, [&] { return stream->num_done == stream->num_issued; });
  streams_.erase(std::find(streams_.begin(), streams_.end(), stream));
  for (Event* event : events_) {
    if (event->captured_on == stream) event->captured_on = nullptr;
  }
  delete stream;
  return cudaSuccess;
}

cudaError_t Machine::Synchronize(Stream* stream) {
  Lock lock(mutex_);
  if (!Knows(stream)) return cudaErrorInvalidResourceHandle;
  if (stream->capture != nullptr) {
    stream->capture->is_valid = false;
    return cudaErrorStreamCaptureUnsupported;
  }
  if (const cudaError_t error = CheckMayBlockLocked(); error != cudaSuccess) return error;
  const uint64_t last = stream->num_issued;
  changed_.wait(lock, [&] { return stream->num_done >= last; });
  return errors_[static_cast<size_t>(stream->device)];
}

cudaError_t Machine::Query(Stream* stream) {
  const Lock lock(mutex_);
  if (!Knows(stream)) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = CheckMayBlockLocked(); error != cudaSuccess) return error;
  if (stream->num_done < stream->num_issued) return cudaErrorNotReady;
  return errors_[static_cast<size_t>(stream->device)];
}

void Machine::WaitUntilIdle(Lock& lock, int device) {
  changed_.wait(lock, [&] {
    return std::all_of(streams_.begin(), streams_.end(), [device](const Stream* stream) {
      return stream->device != device || stream->num_done == stream->num_issued;
    });
  });
}

void Machine::AwaitFree(int device) {
  Lock lock(mutex_);
  for (int other = 0; other < options_.num_devices; ++other) {
    if (other == device || !options_.has_process_per_device) WaitUntilIdle(lock, other);
  }
}

cudaError_t Machine::SynchronizeDevice(int device) {
  Lock lock(mutex_);
  if (const cudaError_t error = CheckMayBlockLocked(); error != cudaSuccess) return error;
  WaitUntilIdle(lock, device);
  return errors_[static_cast<size_t>(device)];
}

cudaError_t Machine::Issue(Stream* stream, Node node) {
  Lock lock(mutex_);
  if (!Knows(stream)) return cudaErrorInvalidResourceHandle;
  return IssueLocked(lock, stream, std::move(node));
}

cudaError_t Machine::IssueLocked(Lock& lock, Stream* stream, Node node) {
  if (Capture* capture = stream->capture; capture != nullptr) {
    if (!capture->is_valid) return cudaErrorStreamCaptureInvalidated;
    capture->nodes.push_back(std::move(node));
    if (stream != capture->origin) capture->joined[stream] = false;
    return cudaSuccess;
  }
  Stream::Entry entry;
  if (node.record != nullptr) {
    // A graph may outlive its events.
    if (!Knows(node.record)) return cudaErrorInvalidResourceHandle;
    entry.kind = Stream::Kind::kRecord;
    entry.mark = std::make_shared<Mark>();
    node.record->last = entry.mark;
    node.record->capture = nullptr;
  } else {
    entry.kind = node.work == nullptr ? Stream::Kind::kStart : Stream::Kind::kWork;
    entry.node = std::move(node);
  }
  return PushLocked(lock, stream, std::move(entry));
}

cudaError_t Machine::PushLocked(Lock& lock, Stream* stream, Stream::Entry entry) {
  changed_.wait(lock, [&] { return stream->queue.size() < kEntriesMax; });
  const cudaError_t error = errors_[static_cast<size_t>(stream->device)];
  if (error != cudaSuccess && entry.kind != Stream::Kind::kRecord) return error;
  stream->queue.push_back(std::move(entry));
  ++stream->num_issued;
  changed_.notify_all();
  return error;
}

// Kernels

cudaError_t Machine::FindHandle(const char* name, const Kernel** kernel) {
  *kernel = FindKernel(name);
  if (*kernel == nullptr) return cudaErrorSymbolNotFound;
  const Lock lock(mutex_);
  kernels_.insert(*kernel);
  return cudaSuccess;
}

bool Machine::IsKernel(const void* handle) const {
  const Lock lock(mutex_);
  return kernels_.count(static_cast<const Kernel*>(handle)) > 0;
}

cudaError_t Machine::AllowSharedMemory(int device, const Kernel* kernel, int bytes) {
  if (bytes < 0 || bytes > kSharedBytesMax) return cudaErrorInvalidValue;
  const Lock lock(mutex_);
  shared_bytes_[{device, kernel}] = bytes;
  return cudaSuccess;
}

cudaError_t Machine::Launch(int device, const cudaLaunchConfig_t& config, const Kernel* kernel,
                            const void* params) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  const auto refuse = [kernel](absl::string_view why, cudaError_t error) {
    LogRefusal(absl::StrCat("launch of ", kernel->name, ": ", why));
    return error;
  };
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > kGridMax || grid.z > kGridMax) {
    return refuse("a grid without blocks, or one that is too large", cudaErrorInvalidConfiguration);
  }
  if (block.y != 1 || block.z != 1 || block.x == 0 || block.x > kThreadsMax || block.x % 32 != 0) {
    return refuse(absl::StrCat("blocks of ", block.x, " x ", block.y, " x ", block.z, " threads"),
                  cudaErrorInvalidConfiguration);
  }
  if (block.x > static_cast<unsigned>(kernel->threads_max)) {
    return refuse(absl::StrCat(block.x, " threads; the kernel is built for ", kernel->threads_max),
                  cudaErrorLaunchOutOfResources);
  }
  auto* const stream = reinterpret_cast<Stream*>(config.stream);
  {
    const Lock lock(mutex_);
    if (!Knows(stream)) return refuse("no such stream", cudaErrorInvalidResourceHandle);
    if (stream->device != device) {
      return refuse("a stream of another device than the current one",
                    cudaErrorInvalidResourceHandle);
    }
    // Kernels may be loaded at their first launch, and that allocates.
    const bool is_first = loaded_.insert({device, kernel}).second;
    if (is_first && stream->capture != nullptr) {
      stream->capture->is_valid = false;
      return refuse("its first launch, while the stream is captured",
                    cudaErrorStreamCaptureUnsupported);
    }
    const auto allowed = shared_bytes_.find({device, kernel});
    const int most = allowed == shared_bytes_.end() ? kSharedBytesFree
                                                    : std::max(allowed->second, kSharedBytesFree);
    if (config.dynamicSmemBytes > static_cast<size_t>(most)) {
      return refuse(absl::StrCat(config.dynamicSmemBytes, " bytes of shared memory; allowed are ",
                                 most, " (cudaFuncSetAttribute)"),
                    cudaErrorInvalidValue);
    }
  }
  // Copied now: the caller's struct may change.
  std::vector<std::max_align_t> copy(kernel->params_bytes / sizeof(std::max_align_t) + 1);
  std::memcpy(copy.data(), params, kernel->params_bytes);
  GridOptions options = {
      .grid = {static_cast<int>(grid.x), static_cast<int>(grid.y), static_cast<int>(grid.z)},
      .threads = static_cast<int>(block.x),
      .shared_bytes = config.dynamicSmemBytes};
  const auto run = [this, kernel, options, copy = std::move(copy)] {
    GridOptions mine = options;
    {
      const Lock lock(mutex_);
      mine.seed = random_();
    }
    return RunGrid(*kernel, mine, copy.data());
  };
  return IssueChecked(stream, kernel->name, {.work = run});
}

// The thread

int64_t Machine::Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  last_time_ =
      std::max(last_time_ + 1, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  return last_time_;
}

void Machine::Fail(int device, const absl::Status& status) {
  cudaError_t& error = errors_[static_cast<size_t>(device)];
  if (status.ok() || error != cudaSuccess) return;
  LogRefusal(status.message());
  error = options_.failure;
}

Stream* Machine::Pick() {
  if (options_.copies_last) {
    Stream* const other = PickIf([](const Stream& it) { return !it.IsAtHostCopy(); });
    if (other != nullptr) return other;
  }
  return PickIf([](const Stream&) { return true; });
}

Stream* Machine::PickIf(absl::FunctionRef<bool(const Stream&)> may_run) {
  const auto is_ready = [&](const Stream* stream) { return stream->CanRun() && may_run(*stream); };
  const auto num_ready =
      static_cast<uint64_t>(std::count_if(streams_.begin(), streams_.end(), is_ready));
  if (num_ready == 0) return nullptr;
  uint64_t choice = random_() % num_ready;
  for (Stream* stream : streams_) {
    if (is_ready(stream) && choice-- == 0) return stream;
  }
  return nullptr;
}

void Machine::EndFirst(Stream* stream) {
  stream->is_busy = false;
  stream->queue.pop_front();
  ++stream->num_done;
  changed_.notify_all();
}

void Machine::RunWork(Lock& lock, Stream* stream, const Node& node) {
  const int device = stream->device;
  if (errors_[static_cast<size_t>(device)] != cudaSuccess) return EndFirst(stream);
  if (++num_work_ == options_.fail_at_work) {
    Fail(device,
         absl::InternalError(absl::StrCat("work ", num_work_, " fails, as it was told to")));
    return EndFirst(stream);
  }
  if (node.work != nullptr) {
    lock.unlock();
    const absl::Status status = node.work();
    lock.lock();
    Fail(device, status);
    return EndFirst(stream);
  }
  // Its end may free the entry while it still runs.
  const auto start = node.start;
  lock.unlock();
  start([this, stream, device](const absl::Status& status) {
    const Lock again(mutex_);
    Fail(device, status);
    EndFirst(stream);
  });
  lock.lock();
}

void Machine::RunFirst(Lock& lock, Stream* stream) {
  // Stays where it is while others are added behind it.
  const Stream::Entry& first = stream->queue.front();
  stream->is_busy = true;
  switch (first.kind) {
    case Stream::Kind::kWork:
    case Stream::Kind::kStart:
      return RunWork(lock, stream, first.node);
    case Stream::Kind::kRecord:
      first.mark->nanoseconds = Now();
      first.mark->is_reached = true;
      return EndFirst(stream);
    case Stream::Kind::kWait:
      return EndFirst(stream);
  }
}

void Machine::Run() {
  Lock lock(mutex_);
  while (true) {
    if (random_() % kLateOneIn == 0) changed_.wait_for(lock, kLateness);
    Stream* next = Pick();
    // The host may be about to issue something else.
    if (options_.copies_last && next != nullptr && next->IsAtHostCopy()) {
      changed_.wait_for(lock, kLateness);
      next = Pick();
    }
    if (next != nullptr) {
      RunFirst(lock, next);
      continue;
    }
    if (closing_) return;
    changed_.wait(lock);
  }
}

}  // namespace megascale::emulator
