// The version of this program.
#pragma once

namespace megascale::base {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace megascale::base
