// The native stacks of the threads of another process, read by libunwind through ptrace.
//
// One thread at a time is stopped for some milliseconds while its stack is read. It is seized
// (PTRACE_SEIZE), not attached, so a reader that is killed in the middle leaves no thread stopped,
// and a process that somebody else has stopped stays stopped.
#pragma once

#include <sys/types.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/telemetry.pb.h"

namespace megascale::telemetry {

// The stack process ends after this time, even if it still waits for something.
inline constexpr absl::Duration kStackTimeout = absl::Seconds(4);
// After this time, the stack process answers with the stacks that it has read.
inline constexpr absl::Duration kReadBudget = absl::Milliseconds(2500);

// Returns Evidence.stacks, the main thread first. A thread has an error instead of frames if it
// does not stop because it is in the kernel (with the kernel's function if the system tells it), if
// another process traces it, or if `budget` was used up. Threads: any, but only one call at a time
// for a process, because a thread can have only one tracer. Blocking: `budget`, and up to 0.3 s
// more. Errors: NotFound - there is no such process, or it has ended and waits for its parent;
// PermissionDenied - the system does not let this process read the stack of any thread of the
// other; the message says why.
absl::StatusOr<v1::Evidence> ReadStacks(pid_t pid, absl::Duration budget = kReadBudget);

// Lets the parent of this process and the parent's other children read this process's stacks. Does
// nothing on systems that need no permission for it.
void AllowStacks();

// The main function of the stack process: it receives a link.v1.StackAssignment, reads the stacks
// of the process in it, sends them as an agent.v1.EvidenceChunk, and ends. Returns its exit code.
int RunStackProcess(int link_fd);

}  // namespace megascale::telemetry
