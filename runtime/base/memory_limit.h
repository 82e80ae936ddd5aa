// How much memory this process may still use, and how often the kernel has killed for lack of it:
// from the control groups (version 1 and 2) that it is in, and from the machine. Files are read at
// each call; nothing is kept. Threads: plain functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace megascale::base {

// A memory control group that this process is in.
struct MemoryGroup {
  std::string directory;  // where it is mounted: "/sys/fs/cgroup/memory/job"
  int version = 2;
};

// This process's own group, then its ancestors up to the root of what is mounted; of every version
// that is mounted. Empty: none can be seen. `root` stands before every path that is read (tests).
std::vector<MemoryGroup> MemoryGroups(const std::string& root = "");

struct MemoryLimit {
  int64_t available_bytes = 0;  // what can still be taken; page cache that can be dropped included
  int64_t limit_bytes = 0;      // all that there is
  std::string source;  // "memory.max of /sys/fs/cgroup/job", "MemAvailable of this machine"
};

// Where the least memory is available: the machine, or a group. None: nothing can be read.
std::optional<MemoryLimit> LeastMemoryLimit(const std::string& root = "");

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
