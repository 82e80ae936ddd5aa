// Sharing an operator among the threads of a CpuOps, always in the same way.
//
// Threads are OpenMP's, since oneDNN brings them: one pool serves products and kernels, and none is
// started where num_threads is 1. They must not spin while idle, or they take the cores from other
// workers: OMP_WAIT_POLICY=PASSIVE has to be in the environment before the process starts, since
// libgomp reads it when it is loaded.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/ops/cpu_kernels.h"

namespace megascale::ops::cpu {

// Calls body(part, range) for `num_threads` parts of [0, count), in parallel, and returns after
// all. Parts begin at multiples of `grain`; some may be empty, and are then left out. Determinism:
// the parts follow from the arguments alone.
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
#pragma omp parallel for schedule(static, 1) num_threads(num_threads)
  for (int part = 0; part < num_threads; ++part) run(part);
}

}  // namespace megascale::ops::cpu
