#include "runtime/device/testing/strict_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/device/staged_communicator.h"
#include "runtime/device/testing/named_memory.h"
#include "runtime/device/testing/strict_ops.h"
#include "runtime/device/testing/strict_stream.h"
#include "runtime/tensor/arena.h"

namespace megascale::device {
namespace {

// How long the device lets the host get ahead, and one time in how many.
constexpr auto kLateness = std::chrono::microseconds(50);
constexpr uint64_t kLateOneIn = 16;

constexpr size_t kPageBytes = 4096;

size_t PagesFor(size_t bytes) {
  return std::max<size_t>((bytes + kPageBytes - 1) / kPageBytes, 1) * kPageBytes;
}

class HostMemory final : public Memory {
 public:
  HostMemory(tensor::Arena arena, std::atomic<int64_t>* pinned_bytes)
      : Memory(arena.data(), arena.capacity_bytes(), pinned_bytes), arena_(std::move(arena)) {}

 private:
  const tensor::Arena arena_;
};

}  // namespace

class StrictDevice::Block final : public Memory {
 public:
  Block(StrictDevice* device, std::string name, void* address, std::byte* work, size_t size_bytes)
      : Memory(address, size_bytes, &device->used_bytes_),
        device_(*device),
        name_(std::move(name)),
        work_(work) {
    NameMemory(begin(), size_bytes, name_.c_str());
    const std::lock_guard<std::mutex> lock(device_.memory_mutex_);
    device_.blocks_[begin()] = this;
  }
  ~Block() override {
    UnnameMemory(begin());
    {
      const std::lock_guard<std::mutex> lock(device_.memory_mutex_);
      device_.blocks_.erase(begin());
    }
    ::munmap(data(), PagesFor(size_bytes()));
    ::munmap(work_, PagesFor(size_bytes()));
  }

  const std::byte* begin() const { return static_cast<const std::byte*>(data()); }
  std::byte* work() const { return work_; }

 private:
  StrictDevice& device_;
  const std::string name_;
  std::byte* const work_;  // the same bytes, as the device sees them
};

std::unique_ptr<StrictDevice> StrictDevice::Create(const StrictOptions& options) {
  std::unique_ptr<StrictDevice> device(new StrictDevice(options));
  device->thread_ = std::thread(&StrictDevice::Run, device.get());
  return device;
}

StrictDevice::StrictDevice(const StrictOptions& options)
    : options_(options), random_(options.seed) {}

StrictDevice::~StrictDevice() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    MEGASCALE_CHECK(streams_.empty());
    closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
  MEGASCALE_CHECK(blocks_.empty());
}

Description StrictDevice::Describe() const {
  return {.name = "strict device",
          .numerics = ops::InstructionSet(),
          .memory_bytes = static_cast<int64_t>(options_.memory_bytes)};
}

absl::StatusOr<std::unique_ptr<Memory>> StrictDevice::Allocate(absl::string_view name,
                                                               size_t size_bytes) {
  const auto used = static_cast<size_t>(used_bytes());
  if (options_.memory_bytes > 0 && used + size_bytes > options_.memory_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(name, ": ", size_bytes,
                                                     " bytes of device memory; ", used, " of ",
                                                     options_.memory_bytes, " are in use"));
  }
  // The host's addresses are never backed by memory; the device's bytes lie elsewhere.
  const size_t pages = PagesFor(size_bytes);
  void* const address =
      ::mmap(nullptr, pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* const work =
      ::mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED || work == MAP_FAILED) return base::ErrnoStatus(errno, name);
  return std::make_unique<Block>(this, std::string(name), address, static_cast<std::byte*>(work),
                                 size_bytes);
}

absl::StatusOr<std::unique_ptr<Memory>> StrictDevice::AllocateHost(absl::string_view /*name*/,
                                                                   size_t size_bytes) {
  ASSIGN_OR_RETURN(tensor::Arena arena, tensor::Arena::Create(size_bytes));
  auto memory = std::make_unique<HostMemory>(std::move(arena), &pinned_bytes_);
  const std::lock_guard<std::mutex> lock(memory_mutex_);
  most_pinned_bytes_ = std::max(most_pinned_bytes_, pinned_bytes());
  return memory;
}

void* StrictDevice::TranslateIfOwn(const void* address, size_t bytes) const {
  const auto* at = static_cast<const std::byte*>(address);
  const std::lock_guard<std::mutex> lock(memory_mutex_);
  auto after = blocks_.upper_bound(at);
  if (after == blocks_.begin()) return const_cast<std::byte*>(at);
  const Block& block = *std::prev(after)->second;
  if (at >= block.begin() + block.size_bytes()) return const_cast<std::byte*>(at);
  MEGASCALE_CHECK(at + bytes <= block.begin() + block.size_bytes());
  return block.work() + (at - block.begin());
}

void* StrictDevice::Translate(const void* address, size_t bytes, const char* what) const {
  if (address == nullptr || bytes == 0) return const_cast<void*>(address);
  void* const translated = TranslateIfOwn(address, bytes);
  MEGASCALE_CHECK_MSG(translated != address, absl::StrCat(what, " was given host memory"));
  return translated;
}

absl::StatusOr<std::unique_ptr<stream::Stream>> StrictDevice::MakeStream(std::string name) {
  return StrictStream::Create(this, std::move(name));
}

std::unique_ptr<ops::Ops> StrictDevice::MakeOps(stream::Stream* stream, tensor::DType compute,
                                                int num_threads) {
  auto* own = dynamic_cast<StrictStream*>(stream);
  MEGASCALE_CHECK(own != nullptr);
  return MakeStrictOps(this, own, compute, num_threads);
}

absl::StatusOr<std::unique_ptr<comm::Communicator>> StrictDevice::MakeCommunicator(
    comm::HostCommunicator* host, stream::Stream* stream) {
  return MakeStagedCommunicator(this, host, stream);
}

void StrictDevice::Hold() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_held_ = true;
}

void StrictDevice::Release() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_held_ = false;
  changed_.notify_all();
}

int64_t StrictDevice::most_pinned_bytes() const {
  const std::lock_guard<std::mutex> lock(memory_mutex_);
  return most_pinned_bytes_;
}

int64_t StrictDevice::num_work() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_work_;
}

std::map<std::string, int64_t> StrictDevice::num_waits() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_waits_;
}

int64_t StrictDevice::host_bytes_of(const std::string& stream_name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = host_bytes_.find(stream_name);
  return found == host_bytes_.end() ? 0 : found->second;
}

StrictStream* StrictDevice::Pick() {
  if (is_held_) return nullptr;
  // A stream whose work failed reports it before anything else runs.
  for (StrictStream* stream : streams_) {
    if (!stream->error_.ok() && stream->CanRun()) return stream;
  }
  if (options_.copies_last) {
    StrictStream* const other = PickIf([](const StrictStream& it) { return !it.IsAtHostCopy(); });
    if (other != nullptr) return other;
  }
  return PickIf([](const StrictStream&) { return true; });
}

StrictStream* StrictDevice::PickIf(absl::FunctionRef<bool(const StrictStream&)> may_run) {
  const auto is_ready = [&](const StrictStream* s) { return s->CanRun() && may_run(*s); };
  const auto num_ready =
      static_cast<uint64_t>(std::count_if(streams_.begin(), streams_.end(), is_ready));
  if (num_ready == 0) return nullptr;
  uint64_t choice = random_() % num_ready;
  for (StrictStream* stream : streams_) {
    if (is_ready(stream) && choice-- == 0) return stream;
  }
  return nullptr;
}

void StrictDevice::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (random_() % kLateOneIn == 0) changed_.wait_for(lock, kLateness);
    StrictStream* next = Pick();
    // The host may be about to issue something else.
    if (options_.copies_last && next != nullptr && next->IsAtHostCopy()) {
      changed_.wait_for(lock, kLateness);
      next = Pick();
    }
    if (next != nullptr) {
      next->RunFirst(lock);
      changed_.notify_all();
      continue;
    }
    if (closing_) return;
    changed_.wait(lock);
  }
}

}  // namespace megascale::device
