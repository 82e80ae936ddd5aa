#include "gpu/emulator/emulated_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu/emulator/block_executor.h"
#include "runtime/base/check.h"
#include "runtime/device/testing/named_memory.h"

namespace megascale::emulator {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kAlignment = 256;  // of cudaMalloc
constexpr size_t kWindowBytes = size_t{64} << 30;
constexpr char kKernelTouched[] = "a kernel went beyond device memory";

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// The two windows of this process, one behind the other. Only addresses are taken.
std::byte* Window() {
  static std::byte* const window = [] {
    void* const reserved = ::mmap(nullptr, 2 * kWindowBytes, PROT_NONE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MEGASCALE_CHECK_MSG(reserved != MAP_FAILED, "no address space for emulated device memory");
    const auto begin = reinterpret_cast<uintptr_t>(reserved);
    SetMemoryWindow({.begin = begin,
                     .end = begin + kWindowBytes,
                     .offset = static_cast<ptrdiff_t>(kWindowBytes)});
    return static_cast<std::byte*>(reserved);
  }();
  return window;
}

// Where the devices find the byte at an address of the window.
std::byte* Working(const std::byte* address) {
  return const_cast<std::byte*>(address) + kWindowBytes;
}

}  // namespace

EmulatedMemory::EmulatedMemory() : next_(Window()) {}

EmulatedMemory::~EmulatedMemory() {
  MEGASCALE_CHECK_MSG(blocks_.empty(), absl::StrCat(blocks_.size(), " blocks were never freed"));
  MEGASCALE_CHECK_MSG(host_blocks_.empty(),
                      absl::StrCat(host_blocks_.size(), " pinned blocks were never freed"));
}

std::byte* EmulatedMemory::FindRoom(size_t pages_bytes) {
  const size_t needed = pages_bytes + kPageBytes;
  std::byte* const end = Window() + kWindowBytes;
  bool has_wrapped = false;
  std::byte* candidate = next_;
  while (true) {
    if (needed > static_cast<size_t>(end - candidate)) {
      if (std::exchange(has_wrapped, true)) return nullptr;
      candidate = Window();
      if (needed > kWindowBytes) return nullptr;
    }
    // The last block that begins before the end of the candidate; others cannot overlap it.
    const auto after = blocks_.lower_bound(candidate + needed);
    if (after == blocks_.begin()) break;
    const Block& before = std::prev(after)->second;
    std::byte* const free_from = before.pages + before.pages_bytes + kPageBytes;
    if (free_from <= candidate) break;
    candidate = free_from;
  }
  next_ = candidate + needed;
  return candidate;
}

void* EmulatedMemory::Allocate(int device, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Block block = {.device = device, .bytes = bytes};
  const size_t aligned_bytes = RoundUp(std::max<size_t>(bytes, 1), kAlignment);
  block.pages_bytes = RoundUp(aligned_bytes, kPageBytes);
  block.pages = FindRoom(block.pages_bytes);
  if (block.pages == nullptr) return nullptr;
  block.name =
      std::make_unique<std::string>(absl::StrCat("block ", ++num_made_, " of device ", device));
  // At the end of its pages, so that what goes beyond it meets the page behind them.
  std::byte* const address = block.pages + block.pages_bytes - aligned_bytes;
  CommitLocked(address, block);
  blocks_[address] = std::move(block);
  return address;
}

void EmulatedMemory::CommitLocked(const std::byte* address, const Block& block) {
  std::byte* const working = Working(block.pages);
  MEGASCALE_CHECK(::mprotect(working, block.pages_bytes, PROT_READ | PROT_WRITE) == 0);
  std::memset(working, kPoison, block.pages_bytes);
  device::NameMemory(address, block.bytes, block.name->c_str());
  device::NameMemory(working + block.pages_bytes, kPageBytes, block.name->c_str(), kKernelTouched);
}

bool EmulatedMemory::Free(void* address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(static_cast<std::byte*>(address));
  if (found == blocks_.end()) return false;
  const Block& block = found->second;
  std::byte* const working = Working(block.pages);
  device::UnnameMemory(found->first);
  device::UnnameMemory(working + block.pages_bytes);
  MEGASCALE_CHECK(::madvise(working, block.pages_bytes, MADV_DONTNEED) == 0);
  MEGASCALE_CHECK(::mprotect(working, block.pages_bytes, PROT_NONE) == 0);
  blocks_.erase(found);
  return true;
}

void EmulatedMemory::Name(const void* address, absl::string_view name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(static_cast<const std::byte*>(address));
  if (found == blocks_.end()) return;
  Block& block = found->second;
  const std::byte* const guard = Working(block.pages) + block.pages_bytes;
  device::UnnameMemory(found->first);
  device::UnnameMemory(guard);
  block.name = std::make_unique<std::string>(name);
  device::NameMemory(found->first, block.bytes, block.name->c_str());
  device::NameMemory(guard, kPageBytes, block.name->c_str(), kKernelTouched);
}

void* EmulatedMemory::AllocateHost(size_t bytes) {
  const size_t pages_bytes = RoundUp(std::max<size_t>(bytes, 1), kPageBytes);
  auto* const address = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, pages_bytes));
  if (address == nullptr) return nullptr;
  std::memset(address, kPoison, bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  host_blocks_[address] = {.bytes = bytes};
  return address;
}

bool EmulatedMemory::FreeHost(void* address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (host_blocks_.erase(static_cast<std::byte*>(address)) == 0) return false;
  std::free(address);
  return true;
}

size_t EmulatedMemory::used_bytes(int device) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t used = 0;
  for (const auto& [address, block] : blocks_) used += block.device == device ? block.bytes : 0;
  return used;
}

bool EmulatedMemory::IsDevice(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  return at >= Window() && at < Window() + kWindowBytes;
}

absl::Status EmulatedMemory::CheckInside(const Blocks& blocks, const std::byte* address,
                                         size_t bytes, bool must_be_inside) {
  const auto after = blocks.upper_bound(address);
  if (after != blocks.begin()) {
    const auto& [begin, block] = *std::prev(after);
    const auto offset = static_cast<size_t>(address - begin);
    if (offset + bytes <= block.bytes) return absl::OkStatus();
    if (offset < block.bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          bytes, " bytes from byte ", offset, " of ",
          block.name == nullptr ? "pinned memory" : *block.name, ", which has ", block.bytes));
    }
  }
  if (!must_be_inside) return absl::OkStatus();
  return absl::InvalidArgumentError("an address of device memory that is not allocated");
}

absl::StatusOr<std::byte*> EmulatedMemory::Find(const void* address, size_t bytes) const {
  const auto* at = static_cast<const std::byte*>(address);
  const bool is_device = IsDevice(address);
  const std::lock_guard<std::mutex> lock(mutex_);
  const absl::Status inside =
      CheckInside(is_device ? blocks_ : host_blocks_, at, bytes, /*must_be_inside=*/is_device);
  if (!inside.ok()) return inside;
  return is_device ? Working(at) : const_cast<std::byte*>(at);
}

}  // namespace megascale::emulator
