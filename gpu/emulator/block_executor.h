// Runs a kernel on the host, thread by thread, and finds what would go wrong on a device: races on
// shared memory, barriers that not all threads of a block reach, lanes of a warp that meet in
// different operations, shared memory that is read before it is written, asynchronous copies that
// are used before they are waited for. Each thread of a block is a fiber; which one runs next is
// drawn by a seed. For tests: it is slow, and every access to shared memory is looked at.
//
//   const Kernel* kernel = FindKernel("NormForwardF32");
//   RETURN_IF_ERROR(RunGrid(*kernel, {.grid = {rows, 1, 1}, .threads = 256}, &params));
//
// Threads: RunGrid may run on one thread at a time. The kernels are those of the .cu files in
// gpu/kernels, compiled with the host's compiler against gpu/kernels/host_vocabulary.h; each
// registers itself before main. This library defines what they need (gpu/kernels/host_executor.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gpu/kernels/host_executor.h"

namespace megascale::emulator {

using kernels::host::Kernel;

// What memory holds before anything is written there: a NaN in every type.
inline constexpr int kPoison = 0xff;

// Returns null where no kernel has the name.
const Kernel* FindKernel(absl::string_view name);

// A place in the source at which threads of a block or a warp wait for each other: "norm.cu:41", or
// "norm.cu:41 < reduce.h:20" inside of a function that was called there.
using BarrierSite = std::string;

struct GridOptions {
  std::array<int, 3> grid = {1, 1, 1};    // blocks
  int threads = 32;                       // of a block; a multiple of 32
  size_t shared_bytes = 0;                // of a block
  uint64_t seed = 1;                      // of the order of threads and blocks
  BarrierSite left_out = "";              // a barrier that is passed without waiting
  std::set<BarrierSite>* seen = nullptr;  // receives the barriers that the kernel reached
};

// Runs all blocks, one after the other. `params` points to `kernel.params_bytes` bytes. Errors:
// Internal - the kernel broke a rule: the message names kernel, block, thread, place and rule, and
// results are undefined.
absl::Status RunGrid(const Kernel& kernel, const GridOptions& options, const void* params);

// Where kernels find the memory of a device whose addresses the host cannot touch: an address in
// [begin, end) stands for the byte at `address + offset`. Other addresses stay as they are. One
// window for the program.
struct MemoryWindow {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  ptrdiff_t offset = 0;
};
void SetMemoryWindow(const MemoryWindow& window);

}  // namespace megascale::emulator
