// Counts heap allocations of the test binary that links this, to prove that steady work allocates
// nothing. Threads: any. Not under a sanitizer, which has a heap of its own.
#pragma once

#include <cstdint>

namespace megascale::base {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kHeapIsCounted = false;
#else
inline constexpr bool kHeapIsCounted = true;
#endif

// Totals of all threads since the program began.
struct HeapCalls {
  int64_t ours = 0;                // malloc, operator new, …, except by kernel libraries
  int64_t libraries = 0;           // by oneDNN and OpenMP
  int64_t bytes_of_libraries = 0;  // requested by those libraries, freed or not
  int64_t mappings = 0;            // mmap by any code, except the allocator's own

  HeapCalls operator-(const HeapCalls& before) const {
    return {.ours = ours - before.ours,
            .libraries = libraries - before.libraries,
            .bytes_of_libraries = bytes_of_libraries - before.bytes_of_libraries,
            .mappings = mappings - before.mappings};
  }
};
HeapCalls CountHeapCalls();

// Stops counting the calls of this thread.
void IgnoreHeapCallsOfThisThread();

}  // namespace megascale::base
