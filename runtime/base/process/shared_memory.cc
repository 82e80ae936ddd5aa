#include "runtime/base/process/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::base {
namespace {

constexpr size_t kHugePage = 2 << 20;

}  // namespace

void* MapAligned(int fd, size_t size_bytes, int protection) {
  if (size_bytes < kHugePage) {
    return ::mmap(nullptr, size_bytes, protection, MAP_SHARED, fd, 0);
  }
  // Reserve a larger range, map over its aligned part, and unmap the rest.
  const size_t page = static_cast<size_t>(::getpagesize());
  const size_t whole = (size_bytes + page - 1) / page * page;
  void* place = ::mmap(nullptr, whole + kHugePage, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return MAP_FAILED;
  char* begin = static_cast<char*>(place);
  const size_t front = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  void* data = ::mmap(begin + front, size_bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    ::munmap(place, whole + kHugePage);
    errno = error;
    return MAP_FAILED;
  }
  if (front > 0) ::munmap(begin, front);
  ::munmap(begin + front + whole, kHugePage - front);
  return data;
}

void UseHugePages(const SharedMemory& memory) {
  // From Linux 5.14 and 6.1. The second one turns small pages into huge ones, but needs them to be
  // there.
  constexpr int kPopulateWrite = 23;
  constexpr int kCollapse = 25;
  const size_t whole = memory.size_bytes() / kHugePage * kHugePage;
  if (whole == 0 || ::madvise(memory.data(), whole, kPopulateWrite) != 0) return;
  (void)::madvise(memory.data(), whole, kCollapse);
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Create(const std::string& name,
                                                                   size_t size_bytes) {
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("make shared memory ", name));
  if (::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("size shared memory ", name, " to ", size_bytes));
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return ErrnoStatus(errno, absl::StrCat("seal shared memory ", name));
  }
  return Map(std::move(fd));
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Map(UniqueFd fd) {
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "stat shared memory");
  const auto size = static_cast<size_t>(info.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = MapAligned(fd.get(), size, PROT_READ | PROT_WRITE);
    if (data == MAP_FAILED) return ErrnoStatus(errno, "map shared memory");
  }
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(std::move(fd), static_cast<std::byte*>(data), size));
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

}  // namespace megascale::base
