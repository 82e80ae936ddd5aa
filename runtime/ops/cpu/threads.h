// Divides an operator among the threads of a CpuOps, always in the same way.
//
// The threads belong to OpenMP, because oneDNN uses OpenMP, and so one pool serves products and
// kernels. No thread is started if num_threads is 1. By default OpenMP threads spin for a long time
// while idle and take cores from other workers; base::ThreadEnvironment returns the environment
// that a process needs.
#pragma once

#include <algorithm>
#include <cstdint>
#ifdef __SANITIZE_THREAD__
#include <thread>
#include <vector>
#endif

#include "runtime/ops/cpu/kernels.h"

namespace megascale::ops::cpu {

// Calls body(part, range) for `num_threads` parts of [0, count), in parallel, and returns when all
// calls have ended. Parts begin at multiples of `grain`; empty parts are skipped. Determinism: the
// parts follow from the arguments alone.
template <typename Body>
void ForEachPart(int num_threads, int64_t count, int64_t grain, const Body& body) {
  const int64_t grains = (count + grain - 1) / grain;
  const auto run = [&](int part) {
    const Range range{std::min(count, grains * part / num_threads * grain),
                      std::min(count, grains * (part + 1) / num_threads * grain)};
    if (range.size() > 0) body(part, range);
  };
  if (num_threads == 1) {
    run(0);
    return;
  }
#ifdef __SANITIZE_THREAD__
  // The thread sanitizer does not see how OpenMP orders its threads, so use std::thread.
  std::vector<std::thread> threads;
  for (int part = 0; part < num_threads; ++part) threads.emplace_back(run, part);
  for (std::thread& thread : threads) thread.join();
#else
#pragma omp parallel for schedule(static, 1) num_threads(num_threads)
  for (int part = 0; part < num_threads; ++part) run(part);
#endif
}

}  // namespace megascale::ops::cpu
