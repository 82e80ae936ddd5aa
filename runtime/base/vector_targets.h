// Which instruction sets the vector kernels are compiled for, beside the compiler's baseline: AVX2
// and AVX-512. The others of Highway would only lengthen the build. Include before any header of
// hwy.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
