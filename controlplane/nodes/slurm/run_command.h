// Runs a program of the system to its end, with a deadline. Threads: any.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace megascale::nodes {

struct Finished {
  int exit_code = 0;  // 128 + N: ended by signal N
  std::string out;
  std::string err;
};

// Runs words[0], found on the PATH, without a shell; standard input is /dev/null. Its environment
// is this process's without variables that change what Slurm's commands do or print
// (IsDroppedVariable). Blocking: at most `timeout`, then it is killed. Errors: NotFound - no such
// program; DeadlineExceeded; ResourceExhausted - it prints more than 64 MiB.
absl::StatusOr<Finished> RunCommand(const std::vector<std::string>& words, absl::Duration timeout);

// True for SQUEUE_FORMAT, SBATCH_…, SLURM_… and their kind, except SLURM_CONF, which says where the
// cluster is.
bool IsDroppedVariable(absl::string_view name);

}  // namespace megascale::nodes
