// Proves that the plans of roles serve every rank of a mesh. See build/roles.h.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::plan {

// Checks every rank of a mesh from the plans of its roles alone (roles.h). The verdict equals that
// of ValidatePlans over all ranks; validate_roles_test compares the two. A message names the first
// rank of a role. Cost: that of validating the roles, and of CheckGroups.
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

// Checks `groups` rank by rank for the properties that let one plan serve every rank of a stage:
// - every rank is in exactly one group of each kind, with the index and the name that Mesh gives,
//   and no two groups share a name;
// - a data, tensor or stage group is as large as Mesh says, and all of its members are of one
//   stage;
// - a pipeline group has one member of each stage, that of stage s at index s, and every member
//   finds the others at these indices;
// - the world group has all ranks.
// Cost: O(ranks x stages) additions; some milliseconds for 12,288 ranks.
// Errors: Internal - names the group and the rank.
absl::Status CheckGroups(const Mesh& mesh, absl::Span<const Group> groups);

}  // namespace megascale::plan
