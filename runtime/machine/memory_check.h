// Writes patterns to memory and reads them back.
#pragma once

#include <cstddef>

#include "absl/time/time.h"
#include "runtime/machine/part.h"

namespace megascale::machine {

struct MemoryOptions {
  size_t size_bytes = size_t{64} << 20;
  absl::Duration budget = absl::Milliseconds(300);  // repeats for this long; at least once
  Tamper tamper = {};
};

// Fails if a byte differs. The rate counts bytes written and read. A lack of memory is a note.
PartResult CheckMemory(const MemoryOptions& options);

}  // namespace megascale::machine
