// The memory and cores that this process may use, and the processes that the kernel has killed for
// lack of memory. Read from the process's control groups (versions 1 and 2) and from the machine.
// Files are read at each call; nothing is cached. Threads: plain functions.
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

// Returns this process's own group of a controller ("memory", "cpu"), then its ancestors up to the
// root of the mounted hierarchy, for every mounted version. Empty: no group is visible. `root` is a
// prefix of every path that is read (for tests).
std::vector<ControlGroup> ControlGroupsOf(const std::string& controller,
                                          const std::string& root = "");

struct MemoryLimit {
  int64_t available_bytes = 0;  // still available, including page cache that can be dropped
  int64_t limit_bytes = 0;      // the whole limit
  std::string source;  // "memory.max of /sys/fs/cgroup/job", "MemAvailable of this machine"
};

// Returns the limit with the least available memory, of the machine or a group; nullopt if no limit
// can be read.
std::optional<MemoryLimit> LeastMemoryLimit(const std::string& root = "");

// Returns the smallest limit, however much of it is used. The result stays the same until a limit
// is changed.
std::optional<MemoryLimit> SmallestMemoryLimit(const std::string& root = "");

struct CpuLimit {
  double cores = 1;  // cores that may be busy at once: whole cores, or a group's quota such as 1.5
  std::string source;  // "cpu.max of /sys/fs/cgroup/job", "cores of this machine"
};

// Returns the smallest of these: the number of cores that this process may run on (the machine's
// cores, or the process's affinity) and the CPU quota of each group. The kernel throttles a process
// with more busy threads than that.
CpuLimit SmallestCpuLimit(const std::string& root = "");

struct OutOfMemoryKills {
  int64_t count = 0;
  std::string source;  // the file with the count
};

// Returns how many processes the kernel has killed for lack of memory: in this process's own group,
// or on the machine if it has no group. nullopt if the system does not count them.
std::optional<OutOfMemoryKills> CountOutOfMemoryKills(const std::string& root = "");

// Raises the soft limit of open descriptors to the hard limit, for this process and the processes
// that it starts. Does nothing if that is not allowed. Returns the resulting limit.
int64_t RaiseDescriptorLimit();

// Returns how many descriptors this process has open; 0: they cannot be counted.
int64_t CountOpenDescriptors();

// Returns "512 B", "3.2 KiB", "1.9 GiB".
std::string FormatBytes(int64_t bytes);

}  // namespace megascale::base
