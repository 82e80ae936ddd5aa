// Counts units of work, such as bytes that a reader looked at. A test doubles its worst input, and
// expects about twice the count: time would depend on the machine. Count once for a whole loop, not
// in each turn of a hot one. Threads: each has a count of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace megascale::base {

// The work of this thread so far. Only CountWork changes it.
inline thread_local int64_t counted_work = 0;

inline void CountWork(size_t units) { counted_work += static_cast<int64_t>(units); }

// Returns the units that `function` counts on this thread.
template <typename Function>
int64_t WorkOf(Function function) {
  const int64_t before = counted_work;
  function();
  return counted_work - before;
}

}  // namespace megascale::base
