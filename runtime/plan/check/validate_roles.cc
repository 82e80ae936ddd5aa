#include "runtime/plan/check/validate_roles.h"

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/plan/check/rendezvous.h"
#include "runtime/plan/check/validate_rank.h"
#include "runtime/plan/check/validate_step.h"

namespace megascale::plan {
namespace {

// Records which ranks were found in a group, by kind.
class Membership {
 public:
  explicit Membership(const Mesh& mesh)
      : mesh_(mesh),
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
    const int stage = mesh_.CoordinateOf(group.ranks[0]).pipeline;
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
      const int expected = kind == GroupKind::kPipeline ? index : stage;
      if (kind != GroupKind::kWorld && mesh_.CoordinateOf(rank).pipeline != expected) {
        return Refuse(group, "has rank ", rank, " of stage ", mesh_.CoordinateOf(rank).pipeline,
                      "; expected one of stage ", expected);
      }
      if (kind == GroupKind::kPipeline) RETURN_IF_ERROR(CheckPeers(group, rank));
    }
    return absl::OkStatus();
  }

  // Checks how `rank` resolves a peer.
  absl::Status CheckPeers(const Group& group, int rank) const {
    for (size_t peer = 0; peer < group.ranks.size(); ++peer) {
      const int found = mesh_.RankInGroup(GroupKind::kPipeline, rank, static_cast<int>(peer));
      if (found == group.ranks[peer]) continue;
      return Refuse(group, "has rank ", group.ranks[peer], " at ", peer, "; rank ", rank,
                    " takes rank ", found, " for it");
    }
    return absl::OkStatus();
  }

  const Mesh& mesh_;
  const std::vector<GroupKind> kinds_;
  std::vector<std::vector<bool>> found_;  // by kind, by rank
  absl::flat_hash_set<std::string> names_;
};

}  // namespace

absl::Status CheckGroups(const Mesh& mesh, absl::Span<const Group> groups) {
  Membership membership(mesh);
  for (const Group& group : groups) RETURN_IF_ERROR(membership.Add(group));
  return membership.CheckComplete();
}

absl::Status ValidateRolePlans(absl::Span<const RankPlan> roles) {
  if (roles.empty()) return absl::InvalidArgumentError("no plans; expected one for each stage");
  for (size_t i = 0; i < roles.size(); ++i) {
    const RankPlan& role = roles[i];
    const Mesh& mesh = role.mesh;
    const int stage = static_cast<int>(i);
    if (mesh.pipeline_size() != static_cast<int>(roles.size()) ||
        role.rank != mesh.RankOf({.pipeline = stage})) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan ", i, " of ", roles.size(), " is of rank ", role.rank,
                       " of a mesh of ", mesh.pipeline_size(),
                       " stages; expected the plans of each stage's first rank, in order"));
    }
    RETURN_IF_ERROR(CheckSameStep(role, roles[0]));
    RETURN_IF_ERROR(ValidateRankStep(role));
  }
  RETURN_IF_ERROR(CheckGroups(roles[0].mesh, roles[0].mesh.Groups()));
  return CheckRendezvous(roles);
}

}  // namespace megascale::plan
