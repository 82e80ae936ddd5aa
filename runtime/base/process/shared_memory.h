// Anonymous shared memory (memfd): one process makes it and passes its descriptor to others; it
// vanishes with its last holder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/base/fd.h"

namespace megascale::base {

// A mapped memfd. The mapping lives as long as the object. Threads: the object is immutable after
// creation; users synchronise access to the memory themselves.
class SharedMemory {
 public:
  // Makes a region of `size_bytes` zero bytes; `name` shows in /proc. The size is sealed. Errors:
  // ResourceExhausted - not enough memory.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(const std::string& name,
                                                              size_t size_bytes);
  // Maps a region received from another process; takes the descriptor.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Map(UniqueFd fd);

  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  int fd() const { return fd_.get(); }

 private:
  SharedMemory(UniqueFd fd, std::byte* data, size_t size_bytes)
      : fd_(std::move(fd)), data_(data), size_bytes_(size_bytes) {}

  UniqueFd fd_;
  std::byte* data_;
  size_t size_bytes_;
};

// Maps a whole memfd, shared; a large one at a multiple of 2 MiB, so that huge pages fit. Returns
// MAP_FAILED with errno on failure.
void* MapAligned(int fd, size_t size_bytes, int protection);

// Allocates all of the memory and turns it into huge pages, as far as the kernel can (since Linux
// 6.1, whatever the machine's settings are). The content stays. Processes that map it with
// MapAligned get huge pages too.
void UseHugePages(const SharedMemory& memory);

}  // namespace megascale::base
