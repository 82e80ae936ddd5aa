// The result of a what-if analysis as JSON, with the names of StragglerAnalysis' result files, so
// that results can be compared. A pure function.
#pragma once

#include "nlohmann/json_fwd.hpp"
#include "runtime/diagnose/operation_graph.h"
#include "runtime/diagnose/what_if.h"

namespace megascale::diagnose {

// Returns an object with step_t_base, step_t_nodelay, step_t_noblk, launch_slowdown,
// blocking_slowdown, blocking_step_slowdown, launch_step_slowdown and
// blocking_decompose_by_{dp_rank,stage,optype}[_per_step] as in those files; and decompose_by_rank
// (S_w), slowest_ranks, M_W and M_S.
nlohmann::json WhatIfJson(const OperationGraph& graph, const WhatIf& result);

}  // namespace megascale::diagnose
