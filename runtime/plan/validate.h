// Proves that plans are right before anything runs them. Errors are InvalidArgument and name the
// rank and the instruction's id.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/plan/step_plan.h"

namespace megascale::plan {

// What the executor needs of one rank's plan, whatever its operations mean: at least one
// instruction; ids occur once; dependencies exist and, with the order on each stream, make no
// cycle; each stream belongs to one owner; each channel is used from one stream, with a peer in its
// group; activation slots are in range.
absl::Status ValidateRankPlan(const RankPlan& plan);

// The plans of all ranks of one mesh, in rank order, as one training step:
// - each plan passes ValidateRankPlan;
// - every micro-batch passes every chunk once forward and once backward, on the chunk's stage;
// - nothing is used before it is made: each instruction waits, through its rank's dependencies and
//   streams alone, for what makes its input;
// - a slot holds one micro-batch at a time, and all declared slots are used;
// - a gradient buffer holds the gradients of one chunk at a time, or with ZeRO stage 2 of one of
//   its buckets: what begins a sum there waits for the reduction of the sum before, each pass adds
//   to a sum of its chunk or bucket, and each sum is reduced once;
// - sends and receives pair up, and collectives meet, in one order per channel, with equal bytes;
// - no deadlock: a run of all ranks in which a send and its receive, or all members of a
//   collective, end only once all of them have begun. This is the strictest reading: a plan that
//   ends so ends with buffered sends as well.
// Cost: O(instructions); about a second for a million.
absl::Status ValidatePlans(absl::Span<const RankPlan> plans);

// The same for every rank of a mesh, from the plans of its roles alone (roles.h). The verdict is
// that of ValidatePlans over all of them (roles_test holds it to that); a message names the first
// rank of a role. Cost: that of the roles, and of CheckGroups.
//
// Why that is a proof for all ranks. What ValidatePlans asks of a plan alone depends on its rank by
// the stage only, so a role's plan is right for all ranks of the stage or for none. What is left is
// how they meet. Call (r, i) instruction i at rank r, and its image (s, i) instruction i of the
// role s of r. By CheckGroups:
// - a pipeline group has each role once, and peers mean stages: its sends and receives pair up as
//   those of the roles do, whatever the group;
// - a data, tensor or stage group has one role only: the n-th collective on a channel is the same
//   instruction at each member, so it always meets, whole, and with equal bytes; so does a pass
//   that tensor-parallel ranks share;
// - the world has every rank: the n-th collective on a channel is the n-th of each role, at each of
//   its ranks.
// So each meeting's image is a meeting of one replica of the roles, each of the roles' meetings is
// an image at every rank, and all that share an image agree in order and bytes if it does. Now
// waits: (r, i) waits for what is before it at r, and for the rest of its meeting; the images are
// waits of the roles. A deadlock is a cycle of waits. Its image is a closed walk of waits among the
// roles, and so holds a cycle there: if the roles end, every rank ends. And if roles wait for ever,
// so do all ranks of them: what they wait for has a copy that they wait for in turn.
//
// So CheckRendezvous runs one replica, strictly, world-wide collectives included, and CheckGroups
// checks the premises for each rank. Errors: InvalidArgument, as ValidatePlans; not one plan for
// each stage. Internal - groups that are not as above.
absl::Status ValidateRolePlans(absl::Span<const RankPlan> roles);

}  // namespace megascale::plan
