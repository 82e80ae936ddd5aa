// Falsifies a finished checkpoint without damaging it, for tests of code that compares checkpoints.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace megascale::checkpoint {

struct ForgedElement {
  std::string tensor;  // logical name, of type F32
  int64_t index = 0;   // row-major
  float value = 0;
};

// Overwrites one element in its shard, and recomputes checksums and manifest.
absl::Status ForgeElement(const std::string& directory, const ForgedElement& element);

}  // namespace megascale::checkpoint
