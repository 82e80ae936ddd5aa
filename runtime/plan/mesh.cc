#include "runtime/plan/mesh.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace megascale::plan {
namespace {
constexpr int64_t kMaxWorldSize = int64_t{1} << 20;
}  // namespace

absl::string_view Name(GroupKind kind) {
  switch (kind) {
    case GroupKind::kNone:
      return "";
    case GroupKind::kWorld:
      return "world";
    case GroupKind::kData:
      return "data";
    case GroupKind::kPipeline:
      return "pipeline";
    case GroupKind::kTensor:
      return "tensor";
    case GroupKind::kStage:
      return "stage";
  }
  return "?";
}

absl::StatusOr<Mesh> Mesh::Create(MeshSizes sizes) {
  const std::string text = absl::StrCat("mesh of data ", sizes.data, " x pipeline ", sizes.pipeline,
                                        " x tensor ", sizes.tensor);
  if (sizes.data < 1 || sizes.pipeline < 1 || sizes.tensor < 1) {
    return absl::InvalidArgumentError(absl::StrCat(text, ": each size must be at least 1"));
  }
  int64_t world_size = 1;
  for (const int size : {sizes.data, sizes.pipeline, sizes.tensor}) {
    world_size *= size;
    if (world_size > kMaxWorldSize) {
      return absl::InvalidArgumentError(
          absl::StrCat(text, ": more than the limit of ", kMaxWorldSize, " ranks"));
    }
  }
  return Mesh(sizes);
}

Coordinate Mesh::CoordinateOf(int rank) const {
  MEGASCALE_CHECK(Contains(rank));
  return {.data = rank / sizes_.tensor % sizes_.data,
          .pipeline = rank / (sizes_.tensor * sizes_.data),
          .tensor = rank % sizes_.tensor};
}

int Mesh::RankOf(Coordinate coordinate) const {
  MEGASCALE_CHECK(coordinate.data >= 0 && coordinate.data < sizes_.data);
  MEGASCALE_CHECK(coordinate.pipeline >= 0 && coordinate.pipeline < sizes_.pipeline);
  MEGASCALE_CHECK(coordinate.tensor >= 0 && coordinate.tensor < sizes_.tensor);
  return (coordinate.pipeline * sizes_.data + coordinate.data) * sizes_.tensor + coordinate.tensor;
}

std::vector<GroupKind> Mesh::Kinds() const {
  if (sizes_.tensor == 1) return {GroupKind::kWorld, GroupKind::kData, GroupKind::kPipeline};
  return {GroupKind::kWorld, GroupKind::kData, GroupKind::kPipeline, GroupKind::kTensor,
          GroupKind::kStage};
}

bool Mesh::Has(GroupKind kind) const {
  const std::vector<GroupKind> kinds = Kinds();
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

std::vector<Group> Mesh::Groups() const {
  std::vector<Group> groups;
  for (const GroupKind kind : Kinds()) {
    for (int rank = 0; rank < world_size(); ++rank) {
      if (IndexInGroup(kind, rank) == 0) groups.push_back(GroupOf(kind, rank));
    }
  }
  return groups;
}

Group Mesh::GroupOf(GroupKind kind, int rank) const {
  Group group{.name = GroupName(kind, rank), .ranks = std::vector<int>(GroupSize(kind))};
  for (int i = 0; i < GroupSize(kind); ++i) group.ranks[i] = RankInGroup(kind, rank, i);
  return group;
}

std::string Mesh::GroupName(GroupKind kind, int rank) const {
  const Coordinate at = CoordinateOf(rank);
  switch (kind) {
    case GroupKind::kNone:
      break;
    case GroupKind::kWorld:
      return "world";
    case GroupKind::kData:
      return absl::StrCat("dp", at.pipeline, ".t", at.tensor);
    case GroupKind::kPipeline:
      return absl::StrCat("pp", at.data, ".t", at.tensor);
    case GroupKind::kTensor:
      return absl::StrCat("tp", at.pipeline, ".d", at.data);
    case GroupKind::kStage:
      return absl::StrCat("stage", at.pipeline);
  }
  MEGASCALE_CHECK_MSG(false, "kNone is no group");
}

int Mesh::GroupSize(GroupKind kind) const {
  switch (kind) {
    case GroupKind::kNone:
      break;
    case GroupKind::kWorld:
      return world_size();
    case GroupKind::kData:
      return sizes_.data;
    case GroupKind::kPipeline:
      return sizes_.pipeline;
    case GroupKind::kTensor:
      return sizes_.tensor;
    case GroupKind::kStage:
      return sizes_.data * sizes_.tensor;
  }
  MEGASCALE_CHECK_MSG(false, "kNone is no group");
}

int Mesh::IndexInGroup(GroupKind kind, int rank) const {
  switch (kind) {
    case GroupKind::kNone:
      break;
    case GroupKind::kWorld:
      return rank;
    case GroupKind::kData:
      return CoordinateOf(rank).data;
    case GroupKind::kPipeline:
      return CoordinateOf(rank).pipeline;
    case GroupKind::kTensor:
      return CoordinateOf(rank).tensor;
    case GroupKind::kStage:
      return rank % (sizes_.data * sizes_.tensor);
  }
  MEGASCALE_CHECK_MSG(false, "kNone is no group");
}

int Mesh::RankInGroup(GroupKind kind, int rank, int index) const {
  MEGASCALE_CHECK(index >= 0 && index < GroupSize(kind));
  Coordinate at = CoordinateOf(rank);
  switch (kind) {
    case GroupKind::kNone:
      break;
    case GroupKind::kWorld:
      return index;
    case GroupKind::kData:
      at.data = index;
      return RankOf(at);
    case GroupKind::kPipeline:
      at.pipeline = index;
      return RankOf(at);
    case GroupKind::kTensor:
      at.tensor = index;
      return RankOf(at);
    case GroupKind::kStage:
      return at.pipeline * sizes_.data * sizes_.tensor + index;
  }
  MEGASCALE_CHECK_MSG(false, "kNone is no group");
}

}  // namespace megascale::plan
