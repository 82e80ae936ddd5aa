// A single-threaded helper process that starts, signals and reaps the processes of its parent. It
// is forked before the parent has threads, so it can fork safely whatever the parent's libraries
// do; being the only one that reaps, it never signals a process id that the kernel gave to somebody
// else.
//
// Nothing survives the parent: when the parent ends in any way (its end of the command socket
// closes; a parent-death signal stands behind that), the keeper kills the process group of each
// child and then every orphan that comes back to it (it is a sub-reaper), removes what it was asked
// to remove, and exits. When the keeper itself is killed, its children die by their parent-death
// signal.
//
// Threads: a ProcessKeeper object belongs to one thread at a time. Start it from the main thread:
// the parent-death signal fires when the *thread* that started it ends.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/fd.h"

namespace megascale::launch {

struct SpawnRequest {
  int64_t token = 0;                     // names the process from now on; from 1, never used before
  std::string program;                   // path of the executable
  std::vector<std::string> arguments;    // argv, [0] included
  std::vector<std::string> environment;  // "NAME=value", beside or instead of the parent's own
  std::vector<std::pair<int, int>> descriptors;  // {ours, its number in the child}, at most 32
  int output = -1;                               // takes stdout and stderr; -1: those of the parent
};

struct ProcessExit {
  int64_t token = 0;
  pid_t pid = 0;
  int status = 0;       // as of waitpid
  bool killed = false;  // it lived when a signal of Kill was sent; false: it ended without that
};

class ProcessKeeper {
 public:
  struct Options {
    std::vector<std::string>
        remove_at_end;  // files and directory trees, removed after all children
  };

  // Forks the keeper. Errors: FailedPrecondition - this process has other threads already.
  static absl::StatusOr<std::unique_ptr<ProcessKeeper>> Start(const Options& options);

  ProcessKeeper(const ProcessKeeper&) = delete;
  ProcessKeeper& operator=(const ProcessKeeper&) = delete;
  // Stop(), if that was not done.
  ~ProcessKeeper();

  // Starts a child in a process group of its own; stdin is /dev/null. Returns its process id.
  // Errors: NotFound, PermissionDenied - the program; Unavailable - the keeper is gone.
  absl::StatusOr<pid_t> Spawn(const SpawnRequest& request);

  // Sends `signal` to the child's process group. A child that is reaped already is no error.
  absl::Status Kill(int64_t token, int signal);

  // Readable when TakeExits has something, or when the keeper is gone.
  int exits_fd() const { return exits_.get(); }

  // The exits since the last call. What was left of the child's process group is killed by then.
  // Errors: Unavailable - the keeper is gone, and all children with it.
  absl::StatusOr<std::vector<ProcessExit>> TakeExits();

  // Kills all children and waits until they are reaped and the keeper is gone, at most 10 s.
  void Stop();

  pid_t pid() const { return pid_; }

 private:
  ProcessKeeper(pid_t pid, base::UniqueFd commands, base::UniqueFd exits)
      : pid_(pid), commands_(std::move(commands)), exits_(std::move(exits)) {}

  pid_t pid_;
  base::UniqueFd commands_;
  base::UniqueFd exits_;
};

// "exited with status 3", "killed by signal 9 (Killed)".
std::string DescribeExit(int status);

}  // namespace megascale::launch
