// Anonymous shared memory (memfd): made by one process, handed to others by descriptor, gone when
// the last holder is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/base/fd.h"

namespace megascale::base {

// A mapped memfd. The mapping lives as long as the object. Threads: the object itself is immutable
// after creation; what is in the memory is its users' affair.
class SharedMemory {
 public:
  // A new region of `size_bytes` zero bytes; `name` shows in /proc. The size is sealed.
  // Errors: ResourceExhausted - no memory.
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

// mmap of a whole memfd, shared; large ones at a multiple of 2 MiB, so that huge pages fit.
// MAP_FAILED with errno on failure.
void* MapAligned(int fd, size_t size_bytes, int protection);

// Takes all of the memory and makes huge pages of it, as far as the kernel can (Linux 6.1, whatever
// the machine's settings say); its content stays. Others that map it by MapAligned have them too.
void UseHugePages(const SharedMemory& memory);

}  // namespace megascale::base
