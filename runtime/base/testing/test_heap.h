// Counts what a test binary that links this takes from the heap, to prove that steady work takes
// nothing. Threads: any. Not under a sanitizer, which has a heap of its own.
#pragma once

#include <cstdint>

namespace megascale::base {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kHeapIsCounted = false;
#else
inline constexpr bool kHeapIsCounted = true;
#endif

// Of all threads since the program began.
struct HeapCalls {
  int64_t ours = 0;                // malloc, operator new, …, but for those of kernel libraries
  int64_t libraries = 0;           // of oneDNN and OpenMP
  int64_t bytes_of_libraries = 0;  // that those asked for, whether given back or not
  int64_t mappings = 0;            // mmap, by whom ever; the allocator's own are not in it

  HeapCalls operator-(const HeapCalls& before) const {
    return {.ours = ours - before.ours,
            .libraries = libraries - before.libraries,
            .bytes_of_libraries = bytes_of_libraries - before.bytes_of_libraries,
            .mappings = mappings - before.mappings};
  }
};
HeapCalls CountHeapCalls();

// From now on what this thread calls is not counted.
void IgnoreHeapCallsOfThisThread();

}  // namespace megascale::base
