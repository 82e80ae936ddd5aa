// A single-threaded helper process that starts, signals and reaps processes for its parent. It is
// forked before the parent has threads, so it can fork safely whatever the parent's libraries do.
// Because it alone reaps them, it never signals a process id that the kernel has reused.
//
// No process survives the parent. When the parent ends in any way, its end of the command socket
// closes (a parent-death signal is the second safeguard). Then the keeper kills the process group
// of each child and every orphan that is reparented to it (it is a sub-reaper), removes the paths
// of `remove_at_end`, and exits. When the keeper itself is killed, its children die by their
// parent-death signal.
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
  int64_t token = 0;                     // the process's name from now on; >= 1, never used before
  std::string program;                   // path of the executable
  std::vector<std::string> arguments;    // argv, [0] included
  std::vector<std::string> environment;  // "NAME=value", added to the parent's or overriding it
  std::vector<std::pair<int, int>> descriptors;  // {ours, its number in the child}, at most 32
  int output = -1;                               // for stdout and stderr; -1: the parent's
};

struct ProcessExit {
  int64_t token = 0;
  pid_t pid = 0;
  int status = 0;       // as waitpid returns it
  bool killed = false;  // it still lived when a signal of Kill was sent
};

class ProcessKeeper {
 public:
  struct Options {
    // Files and directory trees to remove when all children have ended.
    std::vector<std::string> remove_at_end;
  };

  // Forks the keeper. Errors: FailedPrecondition - this process already has other threads.
  static absl::StatusOr<std::unique_ptr<ProcessKeeper>> Start(const Options& options);

  ProcessKeeper(const ProcessKeeper&) = delete;
  ProcessKeeper& operator=(const ProcessKeeper&) = delete;
  // Calls Stop() if that was not done.
  ~ProcessKeeper();

  // Starts a child in a process group of its own; stdin is /dev/null. Returns its process id.
  // Blocking: until it runs, at most 10 s. Errors: NotFound, PermissionDenied - the program;
  // Unavailable - the keeper is gone; DeadlineExceeded - the keeper does not answer in this time;
  // returned at once if the keeper has owed the answer to a ping for as long.
  absl::StatusOr<pid_t> Spawn(const SpawnRequest& request);

  // Sends `signal` to the child's process group. It is not an error if the child is already reaped.
  absl::Status Kill(int64_t token, int signal);

  // Asks the keeper for a sign of life, unless it already owes an answer. The answer makes exits_fd
  // readable, and TakeExits takes it. `now`: monotonic.
  void Ping(absl::Duration now);
  // Returns for how long the keeper has owed an answer, because it is stopped, hangs, or its
  // machine is overloaded. Zero: it owes no answer. Call after TakeExits, which takes answers that
  // have come.
  absl::Duration SilenceAt(absl::Duration now) const;

  // Readable when TakeExits has something, or when the keeper is gone.
  int exits_fd() const { return exits_.get(); }

  // Returns the exits since the last call. All other processes of each such child's process group
  // have been killed. Errors: Unavailable - the keeper is gone, and all children with it.
  absl::StatusOr<std::vector<ProcessExit>> TakeExits();

  // Kills all children; waits until they are reaped and the keeper is gone. Blocking: at most 10 s.
  void Stop();

  pid_t pid() const { return pid_; }

 private:
  absl::Status FailedSpawn(const std::string& program, int error) const;
  ProcessKeeper(pid_t pid, base::UniqueFd commands, base::UniqueFd exits)
      : pid_(pid), commands_(std::move(commands)), exits_(std::move(exits)) {}

  pid_t pid_;
  base::UniqueFd commands_;
  base::UniqueFd exits_;
  absl::Duration pinged_ = absl::InfiniteDuration();  // infinite: no answer is owed
  bool ping_is_sent_ = false;                         // else there was no room for it
};

// Returns a status of waitpid in words: "exited with status 3", "killed by signal 9 (Killed)".
std::string DescribeExit(int status);

}  // namespace megascale::launch
