// Which further ranks must be read to explain why some ranks have become slow: those that they have
// begun to wait for. So a large job is explained from few ranks' spans. Pure functions.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::diagnose {

// Whole steps, older ones to compare with and those to judge.
struct ComparedSteps {
  absl::Span<const timeline::TimedStep> before;
  absl::Span<const timeline::TimedStep> now;
};

// Returns ranks that are not known, ascending: the other members of the transfer or of the group in
// which a known rank waits longer than before, the one with the largest growth that has such
// members and is not in `passed`, to which it is added. So a caller that reads only some of them
// gets those of another group at the next call. Empty: there is no further one. `plans`: by rank;
// those of ranks that are not known are not read. Requires: both spans have steps; they come from
// timeline::MeasureSteps with these plans. Cost: O(instructions of known ranks x steps).
std::vector<int> RanksAwaited(absl::Span<const plan::RankPlan> plans,
                              const std::vector<bool>& known, const ComparedSteps& steps,
                              std::set<std::string>* passed);

// Returns the known rank that itself computes longer by the larger part of what a step takes
// longer, the one with the largest growth; -1: there is none, and others must be read. Requires and
// cost: as above.
int RankThatComputesLonger(absl::Span<const plan::RankPlan> plans, const std::vector<bool>& known,
                           const ComparedSteps& steps);

}  // namespace megascale::diagnose
