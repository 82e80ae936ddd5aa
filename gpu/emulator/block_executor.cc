#include "gpu/emulator/block_executor.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu/emulator/fiber.h"
#include "gpu/emulator/shared_memory_watch.h"
#include "gpu/kernels/vocabulary.h"
#include "runtime/base/check.h"

namespace megascale::emulator {
namespace {

using kernels::kLanes;
using kernels::host::Access;
using kernels::host::Place;
using kernels::host::Site;
using kernels::host::Translate;
using kernels::host::Where;

MemoryWindow memory_window;

std::map<std::string, const Kernel*, std::less<>>& Kernels() {
  static auto* const kernels = new std::map<std::string, const Kernel*, std::less<>>();
  return *kernels;
}

std::string Describe(const Where& where) {
  absl::string_view file = where.file_name();
  const size_t slash = file.rfind('/');
  if (slash != absl::string_view::npos) file.remove_prefix(slash + 1);
  return absl::StrCat(file, ":", where.line());
}

BarrierSite Describe(const Site& site) {
  if (site.caller.line() == 0) return Describe(site.here);
  return absl::StrCat(Describe(site.caller), " < ", Describe(site.here));
}

bool IsSame(const Site& a, const Site& b) {
  return a.here.line() == b.here.line() && a.here.file_name() == b.here.file_name() &&
         a.caller.line() == b.caller.line() && a.caller.file_name() == b.caller.file_name();
}

// A small generator of its own: a draw for each switch has to cost little.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  uint64_t Below(uint64_t limit) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ % limit;
  }

 private:
  uint64_t state_;
};

struct AsyncCopy {
  size_t to = 0;
  const void* from = nullptr;
  size_t bytes = 0;
  bool is_valid = true;
};

struct Thread {
  enum class State : uint8_t { kRunnable, kAtBarrier, kAtMeeting, kEnded };

  Fiber fiber;
  State state = State::kRunnable;
  Site site;                      // where it waits
  const char* what = "";          // for what
  void* meeting = nullptr;        // what it brought to a meeting of lanes
  std::vector<AsyncCopy> copies;  // not yet committed
  std::vector<std::vector<AsyncCopy>> groups;
};

struct WarpOfThreads {
  uint64_t epoch = 0;
  int num_met = 0;
};

// One grid at a time.
class Executor {
 public:
  absl::Status Run(const Kernel& kernel, const GridOptions& options, const void* params);

  const Place& place() const { return place_; }
  std::byte* Touch(size_t offset, size_t bytes, size_t alignment, Access access);
  void Start(const AsyncCopy& copy);
  void Commit();
  void Wait(int groups_left, const Site& site);
  void SyncBlock(const Site& site);
  void SyncLanes(const Site& site);
  void Meet(void* lane, kernels::host::Meet meet, const char* what, const Site& site);
  // Records the first thing that is wrong; the block is given up at the thread's next wait.
  void Fail(const std::string& wrong);
  void LookAt(const void* address, size_t alignment);

 private:
  void RunBlock();
  static void Enter(void* self);
  Thread& current() { return *threads_[static_cast<size_t>(place_.thread)]; }
  WarpOfThreads& warp() { return warps_[static_cast<size_t>(place_.thread / kLanes)]; }
  Moment Now() { return {place_.thread, place_.thread / kLanes, block_epoch_, warp().epoch}; }
  void WaitAs(Thread::State state, const char* what, const Site& site);
  void Release(size_t first, size_t count);
  // Returns whether the site is passed without waiting; records that it was seen.
  bool IsLeftOut(const Site& site, const char* what);
  std::string DescribeStuck() const;

  const Kernel* kernel_ = nullptr;
  const GridOptions* options_ = nullptr;
  const void* params_ = nullptr;
  Place place_;
  std::vector<std::unique_ptr<Thread>> threads_;  // kept for the next grid
  std::vector<WarpOfThreads> warps_;
  std::vector<std::byte> shared_;
  SharedMemoryWatch watch_;
  Random random_{1};
  uint64_t block_epoch_ = 0;
  int num_at_barrier_ = 0;
  int num_ended_ = 0;
  std::string wrong_;
};

Executor& TheExecutor() {
  static auto* const executor = new Executor();
  return *executor;
}

absl::Status Executor::Run(const Kernel& kernel, const GridOptions& options, const void* params) {
  if (options.threads <= 0 || options.threads % kLanes != 0 ||
      options.threads > kernel.threads_max) {
    return absl::InvalidArgumentError(absl::StrCat(kernel.name, ": ", options.threads,
                                                   " threads in a block; expected a multiple of ",
                                                   kLanes, ", at most ", kernel.threads_max));
  }
  kernel_ = &kernel;
  options_ = &options;
  params_ = params;
  random_ = Random(options.seed);
  wrong_.clear();
  place_.num_threads = options.threads;
  std::copy(options.grid.begin(), options.grid.end(), place_.grid);
  while (threads_.size() < static_cast<size_t>(options.threads)) {
    threads_.push_back(std::make_unique<Thread>());
  }
  shared_.resize(std::max(shared_.size(), options.shared_bytes));

  std::vector<int> blocks(static_cast<size_t>(options.grid[0]) *
                          static_cast<size_t>(options.grid[1]) *
                          static_cast<size_t>(options.grid[2]));
  std::iota(blocks.begin(), blocks.end(), 0);
  for (size_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[random_.Below(i)]);
  for (const int block : blocks) {
    place_.block[0] = block % options.grid[0];
    place_.block[1] = block / options.grid[0] % options.grid[1];
    place_.block[2] = block / options.grid[0] / options.grid[1];
    RunBlock();
    if (!wrong_.empty()) return absl::InternalError(wrong_);
  }
  return absl::OkStatus();
}

void Executor::Enter(void* self) {
  auto* executor = static_cast<Executor*>(self);
  executor->kernel_->run(executor->params_);
}

void Executor::RunBlock() {
  std::fill_n(shared_.data(), options_->shared_bytes, std::byte{kPoison});
  watch_.Reset(options_->shared_bytes);
  const auto num_threads = static_cast<size_t>(place_.num_threads);
  warps_.assign(num_threads / kLanes, {});
  block_epoch_ = num_at_barrier_ = num_ended_ = 0;
  std::vector<int> runnable(num_threads);
  for (size_t i = 0; i < num_threads; ++i) {
    Thread& thread = *threads_[i];
    thread.state = Thread::State::kRunnable;
    thread.copies.clear();
    thread.groups.clear();
    thread.fiber.Start(&Executor::Enter, this);
    runnable[i] = static_cast<int>(i);
  }
  while (num_ended_ < place_.num_threads && wrong_.empty()) {
    if (runnable.empty()) {
      for (size_t i = 0; i < num_threads; ++i) {
        if (threads_[i]->state == Thread::State::kRunnable) runnable.push_back(static_cast<int>(i));
      }
      if (runnable.empty()) return Fail(DescribeStuck());
    }
    const size_t choice = random_.Below(runnable.size());
    place_.thread = std::exchange(runnable[choice], runnable.back());
    runnable.pop_back();
    if (!current().fiber.Resume()) continue;
    current().state = Thread::State::kEnded;
    ++num_ended_;
    if (!current().copies.empty() || !current().groups.empty()) {
      Fail("ended while its asynchronous copies were not waited for");
    }
  }
}

std::string Executor::DescribeStuck() const {
  const int num_ended = num_ended_;
  for (int i = 0; i < place_.num_threads; ++i) {
    const Thread& thread = *threads_[static_cast<size_t>(i)];
    if (thread.state == Thread::State::kEnded) continue;
    return absl::StrCat("thread ", i, " waits at ", thread.what, ", ", Describe(thread.site),
                        ", that other threads do not come to; ", num_ended, " threads ended");
  }
  return "no thread can run";
}

void Executor::Fail(const std::string& wrong) {
  if (!wrong_.empty()) return;
  wrong_ = absl::StrCat(kernel_->name, ": block ", place_.block[0], ", ", place_.block[1], ", ",
                        place_.block[2], ", thread ", place_.thread, ": ", wrong);
}

std::byte* Executor::Touch(size_t offset, size_t bytes, size_t alignment, Access access) {
  const char* name = access == Access::kRead ? "reads" : "writes";
  std::string wrong = access == Access::kRead ? watch_.Read(offset, bytes, Now())
                                              : watch_.Write(offset, bytes, Now());
  if (wrong.empty() && offset % alignment != 0) wrong = "not aligned to the size of the access";
  if (wrong.empty()) return shared_.data() + offset;
  Fail(absl::StrCat(name, " shared memory at ", offset, ": ", wrong));
  // A place for the access that failed.
  static std::byte nowhere[16];
  std::memset(nowhere, kPoison, sizeof(nowhere));
  return nowhere;
}

void Executor::LookAt(const void* address, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(address) % alignment == 0) return;
  Fail(absl::StrCat("touches device memory at an address that is no multiple of ", alignment));
}

void Executor::Start(const AsyncCopy& copy) {
  std::string wrong = watch_.BeginCopy(copy.to, copy.bytes, Now());
  if (wrong.empty() && copy.to % copy.bytes != 0) wrong = "not aligned to the size of the copy";
  if (!wrong.empty()) return Fail(absl::StrCat("copies to ", copy.to, ": ", wrong));
  current().copies.push_back(copy);
}

void Executor::Commit() {
  current().groups.push_back(std::move(current().copies));
  current().copies.clear();
}

void Executor::Wait(int groups_left, const Site& site) {
  if (IsLeftOut(site, "wait")) return;
  auto& groups = current().groups;
  while (groups.size() > static_cast<size_t>(groups_left)) {
    for (const AsyncCopy& copy : groups.front()) {
      std::byte* const to = shared_.data() + copy.to;
      if (copy.is_valid) {
        std::memcpy(to, Translate(copy.from, copy.bytes, copy.bytes), copy.bytes);
      } else {
        std::memset(to, 0, copy.bytes);
      }
      watch_.EndCopy(copy.to, copy.bytes, Now());
    }
    groups.erase(groups.begin());
  }
}

bool Executor::IsLeftOut(const Site& site, const char* what) {
  if (options_->seen == nullptr && options_->left_out.empty()) return false;
  const BarrierSite name = absl::StrCat(what, " ", Describe(site));
  if (options_->seen != nullptr) options_->seen->insert(name);
  return name == options_->left_out;
}

void Executor::WaitAs(Thread::State state, const char* what, const Site& site) {
  Thread& thread = current();
  thread.state = state;
  thread.site = site;
  thread.what = what;
  do {
    thread.fiber.Yield();
  } while (thread.state != Thread::State::kRunnable);
}

void Executor::Release(size_t first, size_t count) {
  for (size_t i = first; i < first + count; ++i) threads_[i]->state = Thread::State::kRunnable;
}

void Executor::SyncBlock(const Site& site) {
  if (IsLeftOut(site, "barrier")) return;
  for (const auto& thread : threads_) {
    if (thread->state != Thread::State::kAtBarrier) continue;
    if (!IsSame(thread->site, site)) {
      Fail(absl::StrCat("is at the barrier ", Describe(site), " while others are at ",
                        Describe(thread->site)));
    }
    break;
  }
  if (++num_at_barrier_ == place_.num_threads) {
    ++block_epoch_;
    num_at_barrier_ = 0;
    Release(0, static_cast<size_t>(place_.num_threads));
    return current().fiber.Yield();
  }
  WaitAs(Thread::State::kAtBarrier, "a barrier", site);
}

void Executor::SyncLanes(const Site& site) {
  if (IsLeftOut(site, "warp")) return;
  Meet(
      nullptr, [](void* const*) { ++TheExecutor().warp().epoch; }, "a barrier of the warp", site);
}

void Executor::Meet(void* lane, kernels::host::Meet meet, const char* what, const Site& site) {
  const size_t first = static_cast<size_t>(place_.thread / kLanes) * kLanes;
  current().meeting = lane;
  for (size_t i = first; i < first + kLanes; ++i) {
    const Thread& other = *threads_[i];
    if (other.state != Thread::State::kAtMeeting) continue;
    if (other.what != what || !IsSame(other.site, site)) {
      Fail(absl::StrCat("is at ", what, ", ", Describe(site), ", while other lanes are at ",
                        other.what, ", ", Describe(other.site)));
    }
    break;
  }
  if (++warp().num_met < kLanes) return WaitAs(Thread::State::kAtMeeting, what, site);
  warp().num_met = 0;
  void* lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = threads_[first + i]->meeting;
  if (wrong_.empty()) meet(lanes);
  Release(first, kLanes);
  current().fiber.Yield();
}

}  // namespace

const Kernel* FindKernel(absl::string_view name) {
  const auto found = Kernels().find(name);
  return found == Kernels().end() ? nullptr : found->second;
}

absl::Status RunGrid(const Kernel& kernel, const GridOptions& options, const void* params) {
  return TheExecutor().Run(kernel, options, params);
}

void SetMemoryWindow(const MemoryWindow& window) { memory_window = window; }

}  // namespace megascale::emulator

namespace megascale::kernels::host {

Registration::Registration(const Kernel* kernel) {
  const bool is_new = emulator::Kernels().emplace(kernel->name, kernel).second;
  MEGASCALE_CHECK_MSG(is_new, absl::StrCat("two kernels are named ", kernel->name));
}

const Place& Here() { return emulator::TheExecutor().place(); }

std::byte* TouchShared(size_t offset, size_t bytes, size_t alignment, Access access) {
  return emulator::TheExecutor().Touch(offset, bytes, alignment, access);
}
void StartCopy(size_t to, const void* from, size_t bytes, bool is_valid) {
  emulator::TheExecutor().Start({to, from, bytes, is_valid});
}
void CommitCopies() { emulator::TheExecutor().Commit(); }
void WaitCopies(int groups_left, const Site& site) {
  emulator::TheExecutor().Wait(groups_left, site);
}
void SyncThreads(const Site& site) { emulator::TheExecutor().SyncBlock(site); }
void SyncWarp(const Site& site) { emulator::TheExecutor().SyncLanes(site); }
void MeetLanes(void* lane, Meet meet, const char* what, const Site& site) {
  emulator::TheExecutor().Meet(lane, meet, what, site);
}

const void* Translate(const void* address, size_t /*bytes*/, size_t alignment) {
  emulator::TheExecutor().LookAt(address, alignment);
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (at < emulator::memory_window.begin || at >= emulator::memory_window.end) {
    if (emulator::memory_window.end != 0) emulator::TheExecutor().Fail("touches host memory");
    return address;
  }
  return reinterpret_cast<const void*>(at + static_cast<uintptr_t>(emulator::memory_window.offset));
}

}  // namespace megascale::kernels::host
