#include "runtime/machine/memory_check.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"

namespace megascale::machine {

PartResult CheckMemory(const MemoryOptions& options) {
  PartResult result;
  void* data = ::mmap(nullptr, options.size_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    result.note =
        absl::StrCat("no memory for ", options.size_bytes, " bytes: ", std::strerror(errno));
    return result;
  }
  const absl::Duration begin = base::RealClock().Monotonic();
  absl::Duration taken;
  uint64_t round = 0;
  do {
    FillPattern(round, data, options.size_bytes);
    if (options.tamper) options.tamper(data, options.size_bytes);
    // Reads of the newest lines must come from memory, too: the buffer is larger than the caches.
    result.failure = FindWrongBytes(round, data, options.size_bytes);
    taken = base::RealClock().Monotonic() - begin;
    ++round;
  } while (result.failure.empty() && taken < options.budget);
  result.bytes_per_second =
      RateOf(2.0 * static_cast<double>(round) * static_cast<double>(options.size_bytes), taken);
  ::munmap(data, options.size_bytes);
  return result;
}

}  // namespace megascale::machine
