// The pictures of a diagnosis: heat maps of the job's ranks, as SVG. Pure functions.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "controlplane/trace/job_spans.h"
#include "controlplane/trace/rank_name.h"
#include "runtime/diagnose/operation_graph.h"
#include "runtime/diagnose/stall.h"
#include "runtime/diagnose/what_if.h"

namespace megascale::cli {

// Shows how much each worker slows the job. Numbers in a colour: a slowdown of 2 and more is red.
// `names`: by worker.
std::string SlownessPicture(const diagnose::OperationGraph& graph, const diagnose::WhatIf& result,
                            const std::string& title, absl::Span<const trace::RankName> names);

// Shows the rank that is the cause of a stall, and where the others wait.
std::string StallPicture(const diagnose::StallVerdict& verdict, const trace::JobSpans& spans,
                         const std::string& title);

}  // namespace megascale::cli
