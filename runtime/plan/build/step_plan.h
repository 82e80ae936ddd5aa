// The plan of one training step for one rank, as data, and the pure function that builds it.
// Nothing outside runtime/plan knows how a schedule works.
//
//   ASSIGN_OR_RETURN(Mesh mesh, Mesh::Create({.data = 2, .pipeline = 2}));
//   ASSIGN_OR_RETURN(RankPlan plan, BuildTrainPlan({.mesh = mesh, .num_microbatches = 8}, rank));
//
// A step, with ZeRO stage 1:
// - load the batch;
// - run every micro-batch forward and backward through every chunk, in the schedule's order;
// - while a chunk's last backward goes through its layers, the shard actor reduces their gradients
//   over the data-parallel group, bucket by bucket;
// - all ranks exchange norm, loss and stop flag;
// - each rank updates its slice of the parameters.
//
// With stage 2 the shard actor reduces gradients in each backward and sums up its slice of them. A
// rank then needs no memory for all gradients, but only one or two buffers that its buckets use in
// turn (Rajbhandari et al., 2020, section 5).
//
// The next step begins with gathering the parameters over the group, chunk by chunk in the order in
// which the forward passes need them: the first chunk's while the batch is loaded, later chunks'
// during the forward passes of earlier chunks (MegaScale, section 3.2).
//
// Tensor-parallel ranks run each pass together. A pass is one instruction. Its exchanges are not in
// the plan, but its group tells the validator that all ranks of the group must run such passes in
// the same order. Before a chunk's gradients are reduced, tensor-parallel ranks sum the gradients
// of replicated parameters (S).
#pragma once

#include "absl/status/statusor.h"
#include "runtime/plan/plan_options.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::plan {

// Builds the plan of `rank`. A pure function. All ranks with the same pipeline coordinate get the
// same instructions, since groups and peers are relative, so the plans of p stages describe a mesh
// of any size. Errors: InvalidArgument - a rank outside the mesh, sizes below their minimum, more
// micro-batches or chunks than an id can name, the wrong number of chunk costs.
absl::StatusOr<RankPlan> BuildTrainPlan(const PlanOptions& options, int rank);

}  // namespace megascale::plan
