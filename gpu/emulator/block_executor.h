// Runs a kernel on the host, thread by thread, and finds what would go wrong on a device: races on
// shared memory, barriers that not all threads of a block reach, lanes of a warp that meet in
// different operations, shared memory that is read before it is written, asynchronous copies that
// are used before they are waited for. Each thread of a block is a fiber; a seed decides which
// fiber runs next. For tests only: it is slow, because it checks every access to shared memory.
//
//   const Kernel* kernel = FindKernel("NormForwardF32");
//   RETURN_IF_ERROR(RunGrid(*kernel, {.grid = {rows, 1, 1}, .threads = 256}, &params));
//
// Threads: RunGrid may run on one thread at a time. The kernels are those of the .cu files in
// gpu/kernels, compiled with the host's compiler and gpu/kernels/host_vocabulary.h. Each kernel
// registers itself before main. This library defines the functions that kernels need
// (gpu/kernels/host_executor.h).
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

// The byte in memory that was not written yet: a NaN in every type.
inline constexpr int kPoison = 0xff;

// Returns null if no kernel has the name.
const Kernel* FindKernel(absl::string_view name);

// A place in the source at which threads of a block or a warp wait for each other: "norm.cu:41"; or
// "norm.cu:41 < reduce.h:20" for a place in a function that was called at the first place.
using BarrierSite = std::string;

struct GridOptions {
  std::array<int, 3> grid = {1, 1, 1};    // blocks
  int threads = 32;                       // of a block; a multiple of 32
  size_t shared_bytes = 0;                // of a block
  uint64_t seed = 1;                      // for the order of threads and blocks
  BarrierSite left_out = "";              // a barrier that is passed without waiting
  std::set<BarrierSite>* seen = nullptr;  // receives the barriers that the kernel reached
};

// Runs all blocks, one after the other. `params` points to `kernel.params_bytes` bytes. Errors:
// Internal - the kernel broke a rule: the message names kernel, block, thread, place and rule, and
// results are undefined.
absl::Status RunGrid(const Kernel& kernel, const GridOptions& options, const void* params);

// Where kernels find the memory of a device whose addresses the host cannot access: an address in
// [begin, end) stands for the byte at `address + offset`. Other addresses are used as they are. The
// program has one window.
struct MemoryWindow {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  ptrdiff_t offset = 0;
};
void SetMemoryWindow(const MemoryWindow& window);

}  // namespace megascale::emulator
