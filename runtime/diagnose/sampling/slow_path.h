// Finds the further ranks whose spans must be read to explain why some ranks have become slow: the
// ranks that these have begun to wait for. So a large job is explained from the spans of few ranks.
// Pure functions.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::diagnose {

// Whole steps: older steps to compare with, and the steps to judge.
struct ComparedSteps {
  absl::Span<const timeline::TimedStep> before;
  absl::Span<const timeline::TimedStep> now;
};

// Finds the transfer, or the group, in which the wait of a known rank has grown most, among those
// that have members that are not known and whose names are not in `passed`. Adds its name to
// `passed`, and returns its members that are not known, ascending. So a caller that reads only some
// of these ranks gets the members of another group at the next call. Empty: no such wait has grown
// enough. `plans`: by rank; plans of ranks that are not known are not read. Requires: both spans
// have steps; they come from timeline::MeasureSteps with these plans. Cost: O(instructions of known
// ranks x steps).
std::vector<int> RanksAwaited(absl::Span<const plan::RankPlan> plans,
                              const std::vector<bool>& known, const ComparedSteps& steps,
                              std::set<std::string>* passed);

// Returns the known rank whose own computing has grown most, if that is at least half of the time
// by which a step has grown; -1: there is no such rank, and further ranks must be read. Requires
// and cost: as RanksAwaited.
int RankThatComputesLonger(absl::Span<const plan::RankPlan> plans, const std::vector<bool>& known,
                           const ComparedSteps& steps);

}  // namespace megascale::diagnose
