#include "runtime/plan/check/validate_step.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/plan/check/rendezvous.h"
#include "runtime/plan/check/validate_rank.h"

namespace megascale::plan {

absl::Status CheckSameStep(const RankPlan& plan, const RankPlan& first) {
  if (plan.mesh != first.mesh || plan.num_chunks != first.num_chunks ||
      plan.num_microbatches != first.num_microbatches ||
      plan.shards_gradients != first.shards_gradients ||
      plan.has_tied_ends != first.has_tied_ends || plan.evaluates != first.evaluates) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", plan.rank,
                     " has another mesh, or other numbers of chunks or micro-batches, than rank ",
                     first.rank, ", or one of them shards gradients, has tied ends or evaluates"));
  }
  return absl::OkStatus();
}

absl::Status ValidatePlans(absl::Span<const RankPlan> plans) {
  for (size_t i = 0; i < plans.size(); ++i) {
    const RankPlan& plan = plans[i];
    if (plan.rank != static_cast<int>(i) ||
        plan.mesh.world_size() != static_cast<int>(plans.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan ", i, " of ", plans.size(), " is of rank ", plan.rank, " of ",
                       plan.mesh.world_size(), "; expected the plans of all ranks, in order"));
    }
    RETURN_IF_ERROR(CheckSameStep(plan, plans[0]));
    RETURN_IF_ERROR(ValidateRankStep(plan));
  }
  return CheckRendezvous(plans);
}

}  // namespace megascale::plan
