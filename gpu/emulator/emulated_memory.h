// Memory of the emulated devices, and pinned memory of the host. Device memory is given out by
// addresses in a window of the address space that is never backed by memory; the devices find the
// bytes in a second window, of which only allocated blocks can be touched.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::emulator {

class EmulatedMemory {
 public:
  EmulatedMemory();
  // Requires: everything was freed.
  ~EmulatedMemory();

  // Returns a block of device memory whose bytes are all 0xff; null: the window has no room.
  void* Allocate(int device, size_t bytes);
  // Whether `address` was a block, which is freed.
  bool Free(void* address);
  void Name(const void* address, absl::string_view name);

  void* AllocateHost(size_t bytes);
  bool FreeHost(void* address);

  // Bytes of a device's blocks.
  size_t used_bytes(int device) const;

  // Returns where the bytes are for the devices: device memory in its working window, host memory
  // where it is. Errors: InvalidArgument - they begin in a block and go beyond it, or in the window
  // outside of any block.
  absl::StatusOr<std::byte*> Find(const void* address, size_t bytes) const;
  // Whether an address lies in the window of device memory.
  bool IsDevice(const void* address) const;

 private:
  struct Block {
    int device = 0;
    size_t bytes = 0;
    std::byte* pages = nullptr;  // the block's first page, in the window that is given out
    size_t pages_bytes = 0;
    std::unique_ptr<std::string> name = nullptr;
  };
  using Blocks = std::map<const std::byte*, Block>;

  // Returns room for pages and the page behind them that stays untouchable; null: there is none.
  std::byte* FindRoom(size_t pages_bytes);
  void CommitLocked(const std::byte* address, const Block& block);
  static absl::Status CheckInside(const Blocks& blocks, const std::byte* address, size_t bytes,
                                  bool must_be_inside);

  mutable std::mutex mutex_;
  Blocks blocks_;              // by the address that was given out
  Blocks host_blocks_;         // the same for pinned memory
  std::byte* next_ = nullptr;  // where the search for room begins: freed addresses rest for a while
  int num_made_ = 0;
};

}  // namespace megascale::emulator
