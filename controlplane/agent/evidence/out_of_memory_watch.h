// Finds out whether the kernel killed a process for lack of memory, or somebody else killed it.
// Private to this folder.
//
// Evidence, strongest first:
//   1. The kernel's log names the process (if this user may read the log).
//   2. The count of kills in this agent's control group, or on the machine, rose recently while the
//      process lived, and no other process's end explains the rise.
//   3. If there is no count: the process held nearly all of the limit when it was last seen.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "runtime/base/process/resource_limit.h"

namespace megascale::agent {

// The facts about a process that ended by SIGKILL.
struct KillFacts {
  std::optional<base::OutOfMemoryKills> kills;  // count of kills now; unset: there is no count
  int64_t kills_explained = 0;  // kills before its start, of long ago, or of other processes
  std::string kernel_line;      // the kernel's log line about it; "": there is no line
  int64_t resident_bytes = 0;   // memory when it was last seen; 0: unknown
  std::optional<base::MemoryLimit> limit;
};

// Returns the evidence, with numbers, that the kernel killed the process for lack of memory; "":
// the kernel did not.
std::string DescribeOutOfMemory(const KillFacts& facts);

// Returns the text of a /dev/kmsg record, if it reports that `pid` was killed at or after `since`,
// a time since the machine's start; else "". A record:
//   6,339,5140900,-;Memory cgroup out of memory: Killed process 71 (x) …
std::string KernelKillText(absl::string_view record, pid_t pid, absl::Duration since);

class OutOfMemoryWatch {
 public:
  OutOfMemoryWatch();

  void OnStarted(int64_t process_id, pid_t pid, absl::Duration now);
  // Notes how much memory the processes hold, and forgets old kills. Call periodically.
  void Sample(absl::Duration now);
  // Forgets the process. Returns DescribeOutOfMemory of it if SIGKILL ended it (`killed`), else "".
  std::string OnEnded(int64_t process_id, bool killed);

 private:
  struct Process {
    pid_t pid = 0;
    absl::Duration started;
    int64_t kills_before = 0;
    int64_t resident_bytes = 0;
  };

  int64_t explained_ = 0;  // kills that explain the end of a process, or came before this agent
  int64_t older_ = 0;      // kills 10 to 20 s ago
  int64_t newer_ = 0;
  absl::Duration counted_ = -absl::InfiniteDuration();
  absl::Duration looked_ = -absl::InfiniteDuration();
  std::map<int64_t, Process> processes_;
};

}  // namespace megascale::agent
