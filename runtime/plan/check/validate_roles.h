// Proves that the plans of roles serve every rank of a mesh.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/plan/role_map.h"

namespace megascale::plan {

// Checks every rank of a mesh from the plans of its roles' first ranks alone (role_map.h). The
// verdict equals that of ValidatePlans over all ranks; validate_roles_test compares the two. A
// message names the first rank of a role. Cost: that of validating the templates, and of
// CheckGroups.
//
// Proof that this holds for all ranks. The checks that ValidatePlans makes on a plan alone depend
// on the rank only through its stage, and all ranks of a role are of one stage, so a role's plan is
// correct for all of its ranks or for none. It remains to show how ranks meet. Let (r, i) be
// instruction i at rank r, and let its image be instruction i of the role of r, at the role's first
// rank. By CheckGroups a group has at each index the role that the group of the first rank of any
// of its roles has there, and that group has the first rank of each of its roles. So:
// - in a group of transfers, which has each role at most once, a peer's index means a role: sends
// and
//   receives pair up as those of the first ranks do, whatever the group;
// - in any other group the n-th collective on a channel is the n-th of each of its roles, at each
// of
//   their ranks. If the group has one role only, it is the same instruction at each member, so it
//   always meets, whole, and with equal bytes; so does a pass that tensor-parallel ranks share.
//
// So the image of each meeting is a meeting of the first ranks; each meeting of the first ranks is
// an image at every rank; and all meetings with the same image agree in order and bytes if the
// image does. For deadlocks: (r, i) waits for earlier instructions at r, and for the rest of its
// meeting; the images of these are waits of the first ranks. A deadlock is a cycle of waits. Its
// image is a closed walk of waits among the first ranks, and so contains a cycle there: if the
// first ranks end, every rank ends. Conversely, if first ranks wait for ever, so do all ranks of
// their roles: each wait has a copy at every rank.
//
// So CheckRendezvous runs the first ranks with strict rendezvous, world-wide collectives included,
// and CheckGroups checks the premises for each rank. Errors: InvalidArgument - as ValidatePlans, or
// not exactly one plan for each role; Internal - groups or roles that break the premises.
absl::Status ValidateRolePlans(absl::Span<const RankPlan> templates, const RoleMap& roles);
// The same with RoleMap::ByStage.
absl::Status ValidateRolePlans(absl::Span<const RankPlan> templates);

// Checks `groups` rank by rank for the properties that let one plan serve every rank of a role:
// - every rank is in exactly one group of each kind, with the index and the name that Mesh gives,
//   and no two groups share a name;
// - a group is as large as Mesh says, and has at each index the role that the group of the first
//   rank of any of its roles has there; that group has the first rank of each of its roles;
// - a group in which sends and receives name peers has each role at most once, and every member
//   finds the others at their indices;
// - all ranks of a role are of one stage.
// Cost: O(ranks x roles in a group) additions; tens of milliseconds for 12,288 ranks by stage.
// Errors: Internal - names the group and the rank.
absl::Status CheckGroups(const Mesh& mesh, absl::Span<const Group> groups, const RoleMap& roles);
// The same with RoleMap::ByStage.
absl::Status CheckGroups(const Mesh& mesh, absl::Span<const Group> groups);

}  // namespace megascale::plan
