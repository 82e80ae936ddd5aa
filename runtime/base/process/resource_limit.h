// How much memory and how many cores this process may use, and how often the kernel has killed for
// lack of memory: from the control groups (version 1 and 2) that it is in, and from the machine.
// Files are read at each call; nothing is kept. Threads: plain functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace megascale::base {

// A control group that this process is in.
struct ControlGroup {
  std::string directory;  // where it is mounted: "/sys/fs/cgroup/memory/job"
  int version = 2;
};

// This process's own group of a controller ("memory", "cpu"), then its ancestors up to the root of
// what is mounted; of every version that is mounted. Empty: none can be seen. `root` stands before
// every path that is read (tests).
std::vector<ControlGroup> ControlGroupsOf(const std::string& controller,
                                          const std::string& root = "");

struct MemoryLimit {
  int64_t available_bytes = 0;  // what can still be taken; page cache that can be dropped included
  int64_t limit_bytes = 0;      // all that there is
  std::string source;  // "memory.max of /sys/fs/cgroup/job", "MemAvailable of this machine"
};

// Where the least memory is available: the machine, or a group. None: nothing can be read.
std::optional<MemoryLimit> LeastMemoryLimit(const std::string& root = "");

// Where the limit itself is the smallest, however much of it is used: the same at every call, for
// as long as nobody changes a limit.
std::optional<MemoryLimit> SmallestMemoryLimit(const std::string& root = "");

struct CpuLimit {
  double cores = 1;    // that may be busy at once: whole cores, or a group's quota such as 1.5
  std::string source;  // "cpu.max of /sys/fs/cgroup/job", "cores of this machine"
};

// The smallest of: the cores that this process may run on (the machine's, or its affinity), and the
// quota of each group. A process with more threads than that is made to wait by the kernel.
CpuLimit SmallestCpuLimit(const std::string& root = "");

struct OutOfMemoryKills {
  int64_t count = 0;
  std::string source;  // the file that counts
};

// Processes that the kernel killed for lack of memory, so far: in this process's own group, or on
// the machine where it has none. None: nothing counts them.
std::optional<OutOfMemoryKills> CountOutOfMemoryKills(const std::string& root = "");

// "512 B", "3.2 KiB", "1.9 GiB".
std::string FormatBytes(int64_t bytes);

}  // namespace megascale::base
