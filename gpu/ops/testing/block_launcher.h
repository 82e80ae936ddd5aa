// Runs kernels at once, in the emulator of blocks, on host memory: for tests of operators without a
// device. What a kernel does wrong fails the test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gpu/emulator/block_executor.h"
#include "gpu/ops/launcher.h"
#include "gtest/gtest.h"
#include "runtime/base/check.h"

namespace megascale::gpu {

class BlockLauncher final : public Launcher {
 public:
  void FillZero(void* data, size_t bytes) override {
    if (bytes > 0) std::memset(data, 0, bytes);
  }
  void* Workspace(size_t bytes) override {
    workspace_.assign(bytes / sizeof(double) + 2, poison_);
    // Aligned as cudaMalloc would.
    return workspace_.data() + reinterpret_cast<uintptr_t>(workspace_.data()) % 16 / 8;
  }

 protected:
  void LaunchKernel(const char* kernel, const LaunchShape& shape, const void* params,
                    size_t params_bytes) override {
    const emulator::Kernel* found = emulator::FindKernel(kernel);
    MEGASCALE_CHECK_MSG(found != nullptr, kernel);
    MEGASCALE_CHECK_MSG(found->params_bytes == params_bytes, kernel);
    EXPECT_EQ(emulator::RunGrid(*found,
                                {.grid = shape.grid,
                                 .threads = shape.threads,
                                 .shared_bytes = shape.shared_bytes,
                                 .seed = ++seed_},
                                params),
              absl::OkStatus());
  }

 private:
  // A NaN: kernels have to write the workspace before they read it.
  static constexpr double poison_ = __builtin_nan("");
  uint64_t seed_ = 0;
  std::vector<double> workspace_;
};

}  // namespace megascale::gpu
