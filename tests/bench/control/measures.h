// Shared by the benchmarks of the control plane: time, quantiles, and a process's use of resources.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace megascale::bench {

// The monotonic clock, in seconds.
double Now();

// Returns the quantile `q` (0 to 1) of `values`, by the nearest rank. Requires: `values` not empty.
double Quantile(std::vector<double> values, double q);

// Returns "p50 1.2 ms, p99 3.4 ms, worst 5.6 ms (1000 calls)". Requires: `seconds` not empty.
std::string Quantiles(const std::vector<double>& seconds);

// The resources that a living process uses, from /proc.
struct ProcessUse {
  absl::Duration cpu;        // user and system, so far
  int64_t memory_bytes = 0;  // resident
};
ProcessUse UseOf(pid_t pid);

// Returns the size in bytes of all files below a directory.
int64_t BytesBelow(const std::string& directory);

// Raises the limit of open files of this process, and of processes it starts, as far as the system
// permits.
void AllowManyFiles();

}  // namespace megascale::bench
