// What this program calls itself.
#pragma once

namespace megascale::base {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace megascale::base
