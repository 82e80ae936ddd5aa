// The native stacks of the threads of another process, read by libunwind through ptrace.
//
// A thread is stopped while its stack is read, some milliseconds, one thread at a time. It is
// seized, not attached: a reader that is killed in the middle leaves no thread stopped, and a
// process that somebody has stopped stays stopped.
#pragma once

#include <sys/types.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/telemetry.pb.h"

namespace megascale::telemetry {

// The stack process ends after this time, whatever it waits for.
inline constexpr absl::Duration kStackTimeout = absl::Seconds(4);
// What it has read by this time is its answer.
inline constexpr absl::Duration kReadBudget = absl::Milliseconds(2500);

// Returns Evidence.stacks, the main thread first. A thread has an error in place of frames if it
// does not stop, because it is in the kernel (with the kernel's function where the system tells
// it), if another process traces it, or if no time of `budget` was left. Threads: call it from the
// one that made no other call for this process. Blocking: `budget`, and up to 0.3 s more. Errors:
// NotFound - there is no such process, or it has ended and waits for its parent; PermissionDenied -
// the system lets this one read the stacks of none of its threads; the message says why.
absl::StatusOr<v1::Evidence> ReadStacks(pid_t pid, absl::Duration budget = kReadBudget);

// Lets the parent of this process and the parent's other children read its stacks. Where the system
// asks for no permission, this does nothing.
void AllowStacks();

// The main of a process that receives a link.v1.StackAssignment, reads the stacks of that process,
// sends them as an agent.v1.EvidenceChunk, and ends. Returns its exit code.
int RunStackProcess(int link_fd);

}  // namespace megascale::telemetry
