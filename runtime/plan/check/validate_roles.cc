#include "runtime/plan/check/validate_roles.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/plan/check/rendezvous.h"
#include "runtime/plan/check/validate_rank.h"
#include "runtime/plan/check/validate_step.h"

namespace megascale::plan {
namespace {

// True if sends and receives name peers in groups of this kind.
bool HasPeers(GroupKind kind) {
  const absl::Span<const Operation> operations = AllOperations();
  return std::any_of(operations.begin(), operations.end(), [&](const Operation& operation) {
    return IsTransfer(operation.kind) && operation.meeting.group == kind;
  });
}

// Records which ranks were found in a group, by kind.
class Membership {
 public:
  Membership(const Mesh& mesh, const RoleMap& roles)
      : mesh_(mesh),
        roles_(roles),
        kinds_(mesh.Kinds()),
        found_(kinds_.size(), std::vector<bool>(static_cast<size_t>(mesh.world_size()))) {}

  absl::Status Add(const Group& group) {
    if (!names_.insert(group.name).second) return Refuse(group, "occurs twice");
    if (group.ranks.empty()) return Refuse(group, "has no members");
    for (const int rank : group.ranks) {
      if (!mesh_.Contains(rank)) return Refuse(group, "has rank ", rank, ", which does not exist");
    }
    for (size_t i = 0; i < kinds_.size(); ++i) {
      if (mesh_.GroupName(kinds_[i], group.ranks[0]) != group.name) continue;
      return AddMembers(group, kinds_[i], &found_[i]);
    }
    return Refuse(group, "is no group of its first member, rank ", group.ranks[0]);
  }

  absl::Status CheckComplete() const {
    for (size_t i = 0; i < kinds_.size(); ++i) {
      for (int rank = 0; rank < mesh_.world_size(); ++rank) {
        if (found_[i][static_cast<size_t>(rank)]) continue;
        return absl::InternalError(
            absl::StrCat("rank ", rank, " is in no group of kind ", mesh_.Name(kinds_[i])));
      }
    }
    return absl::OkStatus();
  }

 private:
  template <typename... Parts>
  static absl::Status Refuse(const Group& group, const Parts&... parts) {
    return absl::InternalError(absl::StrCat("group ", group.name, " ", parts...));
  }

  absl::Status AddMembers(const Group& group, GroupKind kind, std::vector<bool>* found) {
    if (static_cast<int>(group.ranks.size()) != mesh_.GroupSize(kind)) {
      return Refuse(group, "has ", group.ranks.size(), " members; expected ",
                    mesh_.GroupSize(kind));
    }
    for (size_t i = 0; i < group.ranks.size(); ++i) {
      const int rank = group.ranks[i];
      const int index = static_cast<int>(i);
      if ((*found)[static_cast<size_t>(rank)]) {
        return Refuse(group, "has rank ", rank, ", which another group of its kind has");
      }
      (*found)[static_cast<size_t>(rank)] = true;
      if (mesh_.IndexInGroup(kind, rank) != index || mesh_.GroupName(kind, rank) != group.name) {
        return Refuse(group, "has rank ", rank, " at ", index, "; expected it in ",
                      mesh_.GroupName(kind, rank), " at ", mesh_.IndexInGroup(kind, rank));
      }
      if (HasPeers(kind)) RETURN_IF_ERROR(CheckPeers(group, kind, rank));
    }
    return CheckRoles(group, kind);
  }

  // Checks that the group is the image of the group of the first rank of each of its roles.
  absl::Status CheckRoles(const Group& group, GroupKind kind) {
    absl::flat_hash_set<int> seen;
    absl::flat_hash_set<const std::vector<int>*> compared;
    for (const int rank : group.ranks) {
      const int role = roles_.RoleOf(rank);
      if (!seen.insert(role).second) {
        if (!HasPeers(kind)) continue;
        return Refuse(group, "has role ", role, " twice; peers are named by role");
      }
      ASSIGN_OR_RETURN(const std::vector<int>* const expected, RolesInGroupOf(role, kind));
      if (!compared.insert(expected).second) continue;
      for (size_t i = 0; i < group.ranks.size(); ++i) {
        if (roles_.RoleOf(group.ranks[i]) == (*expected)[i]) continue;
        return Refuse(group, "has rank ", group.ranks[i], " of role ",
                      roles_.RoleOf(group.ranks[i]), " at ", i, "; expected one of role ",
                      (*expected)[i]);
      }
    }
    return absl::OkStatus();
  }

  // Returns, by index, the roles in the group of a role's first rank. Errors: Internal - the group
  // lacks the first rank of one of them.
  absl::StatusOr<const std::vector<int>*> RolesInGroupOf(int role, GroupKind kind) {
    const int first_rank = roles_.FirstRankOf(role);
    const auto [known, is_new] = roles_in_group_.try_emplace(mesh_.GroupName(kind, first_rank));
    if (!is_new) return &known->second;
    const Group group = mesh_.GroupOf(kind, first_rank);
    const absl::flat_hash_set<int> ranks(group.ranks.begin(), group.ranks.end());
    for (const int rank : group.ranks) {
      const int first = roles_.FirstRankOf(roles_.RoleOf(rank));
      if (!ranks.contains(first)) {
        return Refuse(group, "of a first rank has rank ", rank, ", but not rank ", first,
                      ", the first one of role ", roles_.RoleOf(rank));
      }
      known->second.push_back(roles_.RoleOf(rank));
    }
    return &known->second;
  }

  // Checks how `rank` resolves a peer.
  absl::Status CheckPeers(const Group& group, GroupKind kind, int rank) const {
    for (size_t peer = 0; peer < group.ranks.size(); ++peer) {
      const int found = mesh_.RankInGroup(kind, rank, static_cast<int>(peer));
      if (found == group.ranks[peer]) continue;
      return Refuse(group, "has rank ", group.ranks[peer], " at ", peer, "; rank ", rank,
                    " takes rank ", found, " for it");
    }
    return absl::OkStatus();
  }

  const Mesh& mesh_;
  const RoleMap& roles_;
  const std::vector<GroupKind> kinds_;
  std::map<std::string, std::vector<int>> roles_in_group_;  // by name, by index
  std::vector<std::vector<bool>> found_;                    // by kind, by rank
  absl::flat_hash_set<std::string> names_;
};

}  // namespace

absl::Status CheckGroups(const Mesh& mesh, absl::Span<const Group> groups, const RoleMap& roles) {
  MEGASCALE_CHECK(roles.num_ranks() == mesh.world_size());
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const int first = roles.FirstRankOf(roles.RoleOf(rank));
    if (mesh.CoordinateOf(rank).pipeline == mesh.CoordinateOf(first).pipeline) continue;
    return absl::InternalError(absl::StrCat("role ", roles.RoleOf(rank), " has ranks ", first,
                                            " and ", rank, ", which are of two stages"));
  }
  Membership membership(mesh, roles);
  for (const Group& group : groups) RETURN_IF_ERROR(membership.Add(group));
  return membership.CheckComplete();
}

absl::Status CheckGroups(const Mesh& mesh, absl::Span<const Group> groups) {
  return CheckGroups(mesh, groups, RoleMap::ByStage(mesh));
}

absl::Status ValidateRolePlans(absl::Span<const RankPlan> templates, const RoleMap& roles) {
  if (templates.empty()) return absl::InvalidArgumentError("no plans; expected one for each role");
  for (size_t role = 0; role < templates.size(); ++role) {
    const RankPlan& plan = templates[role];
    const bool is_of_role = templates.size() == static_cast<size_t>(roles.num_roles()) &&
                            plan.mesh.world_size() == roles.num_ranks() &&
                            plan.rank == roles.FirstRankOf(static_cast<int>(role));
    if (!is_of_role) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan ", role, " of ", templates.size(), " is of rank ", plan.rank,
                       " of a mesh of ", plan.mesh.world_size(), " ranks with ", roles.num_roles(),
                       " roles; expected the plans of each role's first rank, in order"));
    }
    RETURN_IF_ERROR(CheckSameStep(plan, templates[0]));
    RETURN_IF_ERROR(ValidateRankStep(plan));
  }
  RETURN_IF_ERROR(CheckGroups(templates[0].mesh, templates[0].mesh.Groups(), roles));
  return CheckRendezvous(templates);
}

absl::Status ValidateRolePlans(absl::Span<const RankPlan> templates) {
  if (templates.empty()) return absl::InvalidArgumentError("no plans; expected one for each role");
  return ValidateRolePlans(templates, RoleMap::ByStage(templates[0].mesh));
}

}  // namespace megascale::plan
