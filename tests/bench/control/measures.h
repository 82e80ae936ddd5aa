// What the benchmarks of the control plane share: quantiles, and what a process uses.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace megascale::bench {

// The value below which a share of `q` (0 to 1) of `values` lies; by the nearest rank. Requires:
// not empty.
double Quantile(std::vector<double> values, double q);

// "p50 1.2 ms, p99 3.4 ms, worst 5.6 ms (1000 calls)"; `seconds` not empty.
std::string Quantiles(const std::vector<double>& seconds);

// Of a living process, from /proc.
struct ProcessUse {
  absl::Duration cpu;        // user and system, so far
  int64_t memory_bytes = 0;  // resident
};
ProcessUse UseOf(pid_t pid);

// Bytes of all files below a directory.
int64_t BytesBelow(const std::string& directory);

// Allows this process, and those that it starts, as many open files as the system permits.
void AllowManyFiles();

}  // namespace megascale::bench
