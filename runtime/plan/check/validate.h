// Proves that plans are correct before they run. Errors are InvalidArgument and name the rank and
// the instruction's id.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::plan {

// Checks what the executor needs of one rank's plan, whatever its operations mean: at least one
// instruction; ids are unique; dependencies exist and, together with the order on each stream, have
// no cycle; each stream belongs to one owner; each channel is used from one stream, with a peer in
// its group; activation slots are in range.
absl::Status ValidateRankPlan(const RankPlan& plan);

// Checks the plans of all ranks of one mesh, in rank order, as one training step:
// - each plan passes ValidateRankPlan;
// - every micro-batch passes every chunk once forward and once backward, on the chunk's stage;
// - data is produced before it is used: each instruction waits, through its rank's dependencies and
//   streams alone, for the instructions that produce its input;
// - a slot holds one micro-batch at a time, and all declared slots are used;
// - a gradient buffer holds the gradients of one chunk at a time, or with ZeRO stage 2 of one
//   bucket: a pass that begins a sum waits for the reduction of the previous sum, each pass adds to
//   the sum of its own chunk or bucket, and each sum is reduced once;
// - sends and receives pair up, and collectives meet, in one order per channel, with equal bytes;
// - no deadlock when all ranks run with rendezvous: a send and its receive, or all members of a
//   collective, end only once all of them have begun. This is the strictest reading: a plan that
//   passes also ends with buffered sends.
//
// Cost: O(instructions); about a second for a million.
absl::Status ValidatePlans(absl::Span<const RankPlan> plans);

// Checks every rank of a mesh from the plans of its roles alone (roles.h). The verdict equals that
// of ValidatePlans over all ranks; roles_test compares the two. A message names the first rank of a
// role. Cost: that of validating the roles, and of CheckGroups.
//
// Proof that this holds for all ranks. The checks that ValidatePlans makes on a plan alone depend
// on the rank only through its stage, so a role's plan is correct for all ranks of the stage or for
// none. It remains to show how ranks meet. Let (r, i) be instruction i at rank r, and let its image
// (s, i) be instruction i of the role s of r. By CheckGroups:
// - a pipeline group has each role once, and peers mean stages: its sends and receives pair up as
//   those of the roles do, whatever the group;
// - a data, tensor or stage group has one role only: the n-th collective on a channel is the same
//   instruction at each member, so it always meets, whole, and with equal bytes; so does a pass
//   that tensor-parallel ranks share;
// - the world has every rank: the n-th collective on a channel is the n-th of each role, at each of
//   its ranks.
//
// So the image of each meeting is a meeting of one replica of the roles; each meeting of the roles
// is an image at every rank; and all meetings with the same image agree in order and bytes if the
// image does. For deadlocks: (r, i) waits for earlier instructions at r, and for the rest of its
// meeting; the images of these are waits of the roles. A deadlock is a cycle of waits. Its image is
// a closed walk of waits among the roles, and so contains a cycle there: if the roles end, every
// rank ends. Conversely, if roles wait for ever, so do all of their ranks: each wait of a role has
// a copy at every rank.
//
// So CheckRendezvous runs one replica with strict rendezvous, world-wide collectives included, and
// CheckGroups checks the premises for each rank. Errors: InvalidArgument - as ValidatePlans, or not
// exactly one plan for each stage; Internal - groups that break the premises.
absl::Status ValidateRolePlans(absl::Span<const RankPlan> roles);

}  // namespace megascale::plan
