// Memory of the emulated devices, and pinned memory of the host. The addresses of device memory lie
// in a window of the address space that is never backed by memory. The devices find the bytes in a
// second window, in which only allocated blocks can be accessed.
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
  // Frees the block at `address`; returns false if there is none.
  bool Free(void* address);
  void Name(const void* address, absl::string_view name);

  void* AllocateHost(size_t bytes);
  bool FreeHost(void* address);

  // Bytes of a device's blocks.
  size_t used_bytes(int device) const;

  // Returns the address at which the devices find the bytes: for device memory in the second
  // window, for host memory `address` itself. Errors: InvalidArgument - the bytes begin in a block
  // and go beyond it, or begin in the window outside of any block.
  absl::StatusOr<std::byte*> Find(const void* address, size_t bytes) const;
  // Whether an address lies in the window of device memory.
  bool IsDevice(const void* address) const;

 private:
  struct Block {
    int device = 0;
    size_t bytes = 0;
    std::byte* pages = nullptr;  // the block's first page, in the first window
    size_t pages_bytes = 0;
    std::unique_ptr<std::string> name = nullptr;
  };
  using Blocks = std::map<const std::byte*, Block>;

  // Returns room for the pages and for an inaccessible page after them; null: there is no room.
  std::byte* FindRoom(size_t pages_bytes);
  void CommitLocked(const std::byte* address, const Block& block);
  static absl::Status CheckInside(const Blocks& blocks, const std::byte* address, size_t bytes,
                                  bool must_be_inside);

  mutable std::mutex mutex_;
  Blocks blocks_;              // by the address that was given out
  Blocks host_blocks_;         // the same for pinned memory
  std::byte* next_ = nullptr;  // where the search for room begins; delays reuse of addresses
  int num_made_ = 0;
};

}  // namespace megascale::emulator
