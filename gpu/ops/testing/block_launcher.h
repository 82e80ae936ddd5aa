// Runs kernels at once, in the emulator of blocks, on host memory: for tests of operators without a
// device. What a kernel does wrong fails the test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include "gpu/emulator/block_executor.h"
#include "gpu/ops/launcher.h"
#include "gtest/gtest.h"
#include "runtime/base/check.h"

namespace megascale::gpu {

class BlockLauncher final : public Launcher {
 public:
  // `seed`: of the order in which threads run.
  explicit BlockLauncher(uint64_t seed = 1) : seed_(seed) {}

  // Leaves out one barrier from now on; what kernels do wrong is then counted, and fails no test.
  void LeaveOut(const emulator::BarrierSite& site) { left_out_ = site; }
  int num_found() const { return num_found_; }
  // Barriers that kernels have reached.
  const std::set<emulator::BarrierSite>& seen() const { return seen_; }

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
    const absl::Status status = emulator::RunGrid(*found,
                                                  {.grid = shape.grid,
                                                   .threads = shape.threads,
                                                   .shared_bytes = shape.shared_bytes,
                                                   .seed = ++seed_,
                                                   .left_out = left_out_,
                                                   .seen = &seen_},
                                                  params);
    if (left_out_.empty()) {
      EXPECT_EQ(status, absl::OkStatus());
    }
    if (!status.ok()) ++num_found_;
  }

 private:
  // A NaN: kernels have to write the workspace before they read it.
  static constexpr double poison_ = __builtin_nan("");
  uint64_t seed_;
  emulator::BarrierSite left_out_;
  std::set<emulator::BarrierSite> seen_;
  int num_found_ = 0;
  std::vector<double> workspace_;
};

// Expects that the kernels which `run` launches break a rule without any one of their barriers.
template <typename Run>
void ExpectEachBarrierIsNeeded(const Run& run) {
  BlockLauncher calm;
  run(calm);
  EXPECT_FALSE(calm.seen().empty());
  for (const emulator::BarrierSite& site : calm.seen()) {
    BlockLauncher launcher;
    launcher.LeaveOut(site);
    run(launcher);
    EXPECT_GT(launcher.num_found(), 0) << site;
  }
}

}  // namespace megascale::gpu
