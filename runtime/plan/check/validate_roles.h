// Proves that the plans of roles are correct for every rank of a mesh.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/plan/role_map.h"

namespace megascale::plan {

// Checks every rank of a mesh, given only the plans of the roles' first ranks (role_map.h). The
// result equals that of ValidatePlans over all ranks; validate_roles_test compares the two. An
// error message names the first rank of a role. Cost: validating the templates, and CheckGroups.
//
// Proof that this holds for all ranks. The checks that ValidatePlans makes on a plan alone depend
// on the rank only through its stage. All ranks of a role belong to one stage, so a role's plan is
// correct for all of its ranks or for none. It remains to show how ranks meet. Let (r, i) be
// instruction i at rank r, and let its image be instruction i of the role of r, at the role's first
// rank. Let G be any group, R any of its roles, and G' the group that contains R's first rank.
// CheckGroups proves that G and G' have the same role at each index, and that G' contains the first
// rank of each of these roles. So:
// - a group of transfers has each role at most once, so the index of a peer means a role. Sends and
//   receives pair up in every such group as in the group of the first ranks;
// - in any other group the n-th collective on a channel is the n-th collective of each of its
//   roles, at each rank of the role. If the group has one role only, the collective is the same
//   instruction at each member, so all members always meet, with equal bytes. The same holds for a
//   pass that tensor-parallel ranks share.
//
// So the image of each meeting is a meeting of the first ranks; each meeting of the first ranks is
// the image of a meeting at every rank; and if the members of the image agree in order and bytes,
// so do the members of all meetings with this image. For deadlocks: (r, i) waits for earlier
// instructions at r, and for the rest of its meeting. The images of these waits are waits of the
// first ranks. A deadlock is a cycle of waits. Its image is a closed walk of waits among the first
// ranks, and so contains a cycle there. So if the first ranks end, every rank ends. Conversely, if
// first ranks wait forever, all ranks of their roles do, too, because each wait has a copy at every
// rank.
//
// So CheckRendezvous runs the first ranks with strict rendezvous, world-wide collectives included,
// and CheckGroups checks the premises for each rank. Errors: InvalidArgument - as ValidatePlans, or
// there is not exactly one plan for each role; Internal - groups or roles break the premises.
absl::Status ValidateRolePlans(absl::Span<const RankPlan> templates, const RoleMap& roles);
// The same with RoleMap::ByStage.
absl::Status ValidateRolePlans(absl::Span<const RankPlan> templates);

// Checks `groups` rank by rank for the properties by which one plan is right for every rank of a
// role:
// - every rank is in exactly one group of each kind, with the index and the name that Mesh gives,
//   and no two groups share a name;
// - a group is as large as Mesh says. The group of the first rank of any of its roles has the same
//   role at each index, and contains the first rank of each of these roles;
// - a group in which sends and receives name peers has each role at most once, and Mesh gives every
//   member the same ranks at the same indices;
// - all ranks of a role belong to one stage.
// Cost: O(ranks x roles in a group) additions; tens of milliseconds for 12,288 ranks by stage.
// Errors: Internal - names the group and the rank.
absl::Status CheckGroups(const Mesh& mesh, absl::Span<const Group> groups, const RoleMap& roles);
// The same with RoleMap::ByStage.
absl::Status CheckGroups(const Mesh& mesh, absl::Span<const Group> groups);

}  // namespace megascale::plan
