// The kernels of gpu/kernels as compiled by nvcc, embedded in the program.
#pragma once

#include <cstddef>

#include "absl/types/span.h"

namespace megascale::cuda {

struct KernelImage {
  const char* name;  // of the file: "norm.fatbin"
  const void* data;
  size_t size;  // in bytes
};

// Defined by generated code: depend on //gpu/kernels. Tests on the emulator use
// emulator::EmulatedImages() instead.
absl::Span<const KernelImage> KernelImages();

}  // namespace megascale::cuda
