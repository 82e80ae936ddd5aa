// How the threads of a process wait for work.
#pragma once

#include <string>
#include <vector>

namespace megascale::base {

// Returns the variables, as "NAME=value", that a process's environment needs before it starts;
// OpenMP reads them when it is loaded. An idle thread then sleeps at once, so that it takes no core
// from other workers. If each thread has a core of its own (`has_cores`), it spins for a tenth of a
// millisecond first, since waking up is slow: a training step of GPT-2 124M in bf16 is 7 % faster
// that way (docs/results/2026-11-21-training-engine.md).
std::vector<std::string> ThreadEnvironment(bool has_cores);

// Whether `num_processes` with `num_threads` threads each have a core for every thread, given that
// they may use `cores` (SmallestCpuLimit). With a smaller quota, spinning threads burn the time
// that others need.
bool HaveCores(int num_processes, int num_threads, double cores);

}  // namespace megascale::base
