// Why a process ended: from its exit status, what the kernel counted, and what it said itself.
#pragma once

#include <optional>

#include "controlplane/agent/agent_core.h"
#include "proto/agent.pb.h"

namespace megascale::agent {

// Whether a status, as of waitpid, is that of a SIGKILL: of the process, or of what it ran.
bool IsKill(int status);

// The failure of a process that ended. What it reported itself goes before its exit status.
v1::RankFailure ClassifyEnd(const ProcessEnd& end, const std::optional<v1::RankFailure>& reported);

}  // namespace megascale::agent
