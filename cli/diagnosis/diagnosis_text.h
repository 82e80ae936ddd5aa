// A diagnosis in words: describes on one screen what runtime/diagnose found. Pure functions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "controlplane/trace/rank_name.h"
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
  std::string first_error;          // that the named rank logged; "": unknown or none
  std::vector<std::string> stacks;  // what threads execute, innermost function first
  std::vector<std::string> cost;
  std::vector<std::string> done;    // what was done about it
  std::vector<std::string> advice;  // what the reader can do
  std::vector<std::string> excluded;
};

// Returns the name of a cause for programs: "slow_worker".
std::string CauseWord(diagnose::SlowCause cause);
std::string CauseWord(diagnose::StallCause cause);

// Describes why the steps are slow.
Findings DescribeSlowness(const diagnose::OperationGraph& graph, const diagnose::WhatIf& result,
                          const diagnose::SlowVerdict& verdict,
                          absl::Span<const trace::RankName> name_of_worker);

// Describes why no rank makes progress. `seconds`: time since any rank last began or ended an
// instruction.
Findings DescribeStall(const diagnose::StallVerdict& verdict, double seconds,
                       absl::Span<const trace::RankName> name_of_rank);

// Adds where the ranks of a job were when it ended: `rank` (-1: no rank failed) in the instruction
// `own`, and the ranks that waited.
void AddLastStall(const diagnose::StallVerdict& verdict, int rank,
                  const std::optional<plan::InstructionId>& own, Findings* findings);

// The size of a screen.
inline constexpr size_t kScreenLines = 24;
inline constexpr int kScreenColumns = 120;

// Returns the findings as at most one screen of lines, with a heading before each group. Lines that
// are too long are cut, and a group with too many lines says how many are left out; the JSON has
// all lines. `complete` returns a line of the advice with its commands in the form in which they
// can be typed; empty: lines stay as they are. It gets lines that are already cut, so its result
// may be longer than the screen is wide.
std::string ToText(const Findings& findings,
                   const std::function<std::string(const std::string&)>& complete = {});

}  // namespace megascale::cli
