// Limits that several sources of this folder share. Private to it.
#pragma once

#include <cstdint>

namespace megascale::hugging_face {

inline constexpr int64_t kBlockElements = int64_t{1} << 20;  // of a tensor, in memory at a time

}  // namespace megascale::hugging_face
