// Classifies why a process ended: by its exit status, the kernel's counters, and its own report.
#pragma once

#include <optional>

#include "controlplane/agent/core/agent_core.h"
#include "proto/agent.pb.h"

namespace megascale::agent {

// True when a status of waitpid means that SIGKILL ended the process, or a program that it ran.
bool IsKill(int status);

// True when a status of waitpid means that a forbidden instruction, operation or memory access
// ended the process: SIGSEGV, SIGBUS, SIGILL or SIGFPE. If the program is well tested, this may be
// the machine's fault.
bool IsCrash(int status);

// Returns the failure of a process that ended. Its own report takes precedence over its exit
// status.
v1::RankFailure ClassifyEnd(const ProcessEnd& end, const std::optional<v1::RankFailure>& reported);

}  // namespace megascale::agent
