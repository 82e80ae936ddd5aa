// Why a process ended: from its exit status, the kernel's out-of-memory counter, and what it said itself.
#pragma once

#include <cstdint>
#include <optional>

#include "controlplane/agent/agent_core.h"
#include "proto/agent.pb.h"

namespace megascale::agent {

// The failure of a process that ended. What it reported itself goes before its exit status.
v1::RankFailure ClassifyEnd(const ProcessEnd& end, const std::optional<v1::RankFailure>& reported);

// How many processes the kernel killed for lack of memory so far: in this process's cgroup (version 1 or
// 2), else on the whole machine; 0 where neither can be read.
int64_t ReadOutOfMemoryKills();

}  // namespace megascale::agent
