// Tells a process that the kernel killed for lack of memory from one that somebody killed. Private
// to this folder.
//
// Evidence, strongest first: the kernel's log names the process (where this user may read it); the
// count of kills in this agent's control group, or on the machine, rose while it lived and lately,
// and no other process has been put down to that kill; or, where nothing counts, it held nearly all
// of the limit when it was last seen.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "runtime/base/resource_limit.h"

namespace megascale::agent {

// What is known of a process that ended by SIGKILL.
struct KillFacts {
  std::optional<base::OutOfMemoryKills> kills;  // now; none: nothing counts them
  int64_t kills_explained = 0;  // of them: before it started, of long ago, or of other processes
  std::string kernel_line;      // the kernel's own words about it; "": none
  int64_t resident_bytes = 0;   // when it was last seen; 0: unknown
  std::optional<base::MemoryLimit> limit;
};

// Why the kernel must have killed it for lack of memory, with the numbers; "": it did not.
std::string DescribeOutOfMemory(const KillFacts& facts);

// Of a /dev/kmsg record ("6,339,5140900,-;Memory cgroup out of memory: Killed process 71 (x) …"):
// the words, if it is of a kill of `pid` at `since` after the machine's start or later; else "".
std::string KernelKillWords(absl::string_view record, pid_t pid, absl::Duration since);

class OutOfMemoryWatch {
 public:
  OutOfMemoryWatch();

  void OnStarted(int64_t process_id, pid_t pid, absl::Duration now);
  // Call now and then: looks at what the processes hold, and forgets kills of long ago.
  void Sample(absl::Duration now);
  // The process is gone. Returns DescribeOutOfMemory of it, or "" unless `killed` by SIGKILL.
  std::string OnEnded(int64_t process_id, bool killed);

 private:
  struct Process {
    pid_t pid = 0;
    absl::Duration started;
    int64_t kills_before = 0;
    int64_t resident_bytes = 0;
  };

  int64_t explained_ = 0;  // kills that are put down to processes, or were before this agent
  int64_t older_ = 0;      // kills 10 to 20 s ago
  int64_t newer_ = 0;
  absl::Duration counted_ = -absl::InfiniteDuration();
  absl::Duration looked_ = -absl::InfiniteDuration();
  std::map<int64_t, Process> processes_;
};

}  // namespace megascale::agent
