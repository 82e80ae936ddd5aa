// The order that a rank's own plan guarantees: an instruction begins after all of its dependencies
// and after all earlier instructions on its stream. For validation and diagnosis.
#pragma once

#include <array>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::plan {

class HappensBefore {
 public:
  // Computes the order. Requires: dependencies are indices into the plan. Cost: O(instructions +
  // dependencies). Errors: InvalidArgument - a cycle; names the instructions on it.
  static absl::StatusOr<HappensBefore> Create(const RankPlan& plan);

  // True if `earlier` has ended before `later` begins, in every run of the plan.
  bool Before(int earlier, int later) const {
    return position_[earlier] < ended_before_[later][stream_[earlier]];
  }

 private:
  using Clock = std::array<int, kNumStreamKinds>;  // by stream: how many instructions have ended

  explicit HappensBefore(const RankPlan& plan);
  absl::Status Order(const RankPlan& plan);
  absl::Status Cycle(const RankPlan& plan, const std::vector<bool>& ordered) const;

  std::vector<int> stream_;    // by instruction
  std::vector<int> position_;  // on its stream
  std::vector<int> previous_;  // on its stream; -1: first
  std::vector<Clock> ended_before_;
};

}  // namespace megascale::plan
