// Changes a finished checkpoint so that it is whole and wrong: for tests of what follows.
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

// Overwrites one element in its shard, and makes checksums and manifest anew.
absl::Status ForgeElement(const std::string& directory, const ForgedElement& element);

}  // namespace megascale::checkpoint
