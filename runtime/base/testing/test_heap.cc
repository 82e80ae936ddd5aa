#include "runtime/base/testing/test_heap.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

namespace megascale::base {
namespace {

std::atomic<int64_t> ours{0};
std::atomic<int64_t> libraries{0};
std::atomic<int64_t> bytes_of_libraries{0};
std::atomic<int64_t> mappings{0};
thread_local bool is_ignored = false;

}  // namespace

HeapCalls CountHeapCalls() {
  return {.ours = ours,
          .libraries = libraries,
          .bytes_of_libraries = bytes_of_libraries,
          .mappings = mappings};
}

void IgnoreHeapCallsOfThisThread() { is_ignored = true; }

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {

// Counts a call by its caller, identified by the file that its code was loaded from. Not by
// dladdr, which reads all symbols of the file at each call.
void Count(const void* caller, size_t size) {
  if (is_ignored) return;
  dl_find_object object = {};
  const bool found = ::_dl_find_object(const_cast<void*>(caller), &object) == 0;
  const char* const file = found ? object.dlfo_link_map->l_name : "";
  const bool library =
      std::strstr(file, "libdnnl") != nullptr || std::strstr(file, "libgomp") != nullptr;
  ++(library ? libraries : ours);
  if (library) bytes_of_libraries += static_cast<int64_t>(size);
}

void* OrThrow(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace
#endif

}  // namespace megascale::base

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// glibc's own functions. The functions below replace them, also for shared libraries.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) {
  megascale::base::Count(__builtin_return_address(0), size);
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  megascale::base::Count(__builtin_return_address(0), count * size);
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) {
  megascale::base::Count(__builtin_return_address(0), size);
  return __libc_realloc(memory, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  megascale::base::Count(__builtin_return_address(0), size);
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, size_t alignment, size_t size) {
  megascale::base::Count(__builtin_return_address(0), size);
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) {
  if (!megascale::base::is_ignored) ++megascale::base::mappings;
  return reinterpret_cast<void*>(::syscall(SYS_mmap, address, size, protection, flags, fd, offset));
}
}

// The standard library's operator new would count as the library's own call, whoever calls it.
void* operator new(size_t size) {
  megascale::base::Count(__builtin_return_address(0), size);
  return megascale::base::OrThrow(__libc_malloc(size));
}
void* operator new[](size_t size) {
  megascale::base::Count(__builtin_return_address(0), size);
  return megascale::base::OrThrow(__libc_malloc(size));
}
void* operator new(size_t size, std::align_val_t alignment) {
  megascale::base::Count(__builtin_return_address(0), size);
  return megascale::base::OrThrow(__libc_memalign(static_cast<size_t>(alignment), size));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  megascale::base::Count(__builtin_return_address(0), size);
  return megascale::base::OrThrow(__libc_memalign(static_cast<size_t>(alignment), size));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

#endif
