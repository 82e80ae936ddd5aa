// How the threads within a process wait for each other.
#pragma once

#include <string>
#include <vector>

namespace megascale::base {

// What the environment of a process must hold before it starts, as "NAME=value": OpenMP reads it
// when it is loaded. A thread that finds nothing to do sleeps at once, so that it takes no core
// from other workers; but where each has a core for itself (`has_cores`) it looks for a tenth of a
// millisecond first, since a sleeper wakes late: a training step of GPT-2 124M in bf16 is 7 %
// faster so (docs/results/2026-11-21-training-engine.md).
std::vector<std::string> ThreadEnvironment(bool has_cores);

// Whether `num_processes` of `num_threads` each have a core for every thread, of `cores` that they
// may use (SmallestCpuLimit): where a quota is smaller, a thread that looks for work burns what the
// others need.
bool HaveCores(int num_processes, int num_threads, double cores);

}  // namespace megascale::base
