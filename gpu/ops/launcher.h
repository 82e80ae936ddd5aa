// Launches kernels in the order of one stream. The operators of this folder use this interface, so
// that tests can run them with the emulator of single blocks, on a whole emulated device, or on a
// real GPU.
#pragma once

#include <array>
#include <cstddef>

namespace megascale::gpu {

struct LaunchShape {
  std::array<int, 3> grid = {1, 1, 1};  // blocks
  int threads = 256;                    // of a block
  size_t shared_bytes = 0;              // dynamic shared memory of a block
};

// Threads: only the stream's thread.
class Launcher {
 public:
  virtual ~Launcher() = default;

  // Launches the kernel of gpu/kernels that has the name `kernel`, with the argument `params`. Does
  // nothing for a grid without blocks. Errors: reported later, as for all work of the stream
  // (Stream::Notify, Finish). Requires (CHECK): the kernel exists and takes a Params.
  template <typename Params>
  void Launch(const char* kernel, const LaunchShape& shape, const Params& params) {
    if (shape.grid[0] == 0 || shape.grid[1] == 0 || shape.grid[2] == 0) return;
    Params plain = params;
    ClearPadding(&plain);
    LaunchKernel(kernel, shape, &plain, sizeof(Params));
  }

  // Sets `bytes` bytes of device memory to 0.
  virtual void FillZero(void* data, size_t bytes) = 0;

  // Returns device memory of at least `bytes` bytes for the operator that is being issued, in which
  // its kernels may pass results to each other. The next operator gets the same memory. Allocates
  // device memory only for an operator that needs more than all operators before it. Returns null
  // after an error; launches then do nothing.
  virtual void* Workspace(size_t bytes) = 0;

 protected:
  // Equal `params` have equal bytes.
  virtual void LaunchKernel(const char* kernel, const LaunchShape& shape, const void* params,
                            size_t params_bytes) = 0;

 private:
  template <typename Params>
  static void ClearPadding([[maybe_unused]] Params* params) {
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(params);
#endif
#endif
  }
};

}  // namespace megascale::gpu
