// A diagnosis in words: what runtime/diagnose found, as one screen. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "runtime/diagnose/operation_graph.h"
#include "runtime/diagnose/slow_verdict.h"
#include "runtime/diagnose/stall.h"
#include "runtime/diagnose/what_if.h"

namespace megascale::cli {

// The text of a diagnosis. Each line is one sentence.
struct Findings {
  std::string cause;    // one word for programs: "slow_worker", "stopped_rank", "unknown" …
  std::string verdict;  // one line: rank and cause
  std::vector<std::string> evidence;
  std::vector<std::string> stacks;  // what threads execute, innermost function first
  std::vector<std::string> cost;
  std::vector<std::string> done;    // what was done about it
  std::vector<std::string> advice;  // what the reader can do
  std::vector<std::string> excluded;
};

// Returns the name of a cause for programs: "slow_worker".
std::string CauseWord(diagnose::SlowCause cause);
std::string CauseWord(diagnose::StallCause cause);

// Describes why the steps are slow. `name_of_worker`: by worker, "rank 3: node b, stage 1, data 0".
Findings DescribeSlowness(const diagnose::OperationGraph& graph, const diagnose::WhatIf& result,
                          const diagnose::SlowVerdict& verdict,
                          absl::Span<const std::string> name_of_worker);

// Describes why no rank makes progress. `name_of_rank`: by rank. `seconds`: since the last rank
// began or ended an instruction.
Findings DescribeStall(const diagnose::StallVerdict& verdict, double seconds,
                       absl::Span<const std::string> name_of_rank);

// Returns the findings as a screen of lines, each at most about 120 columns, with a heading before
// each group.
std::string ToText(const Findings& findings);

}  // namespace megascale::cli
