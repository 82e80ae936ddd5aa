// Restricts the instruction sets for which vector kernels are compiled to AVX2 and AVX-512, in
// addition to the compiler's baseline; Highway's other instruction sets would only lengthen the
// build. Include before any header of hwy.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
