#include "runtime/plan/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "runtime/plan/testing/expert_mesh.h"

namespace megascale::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Mesh MakeMesh(MeshSizes sizes) { return Mesh::Create(sizes).value(); }

TEST(Mesh, CountsTensorFastestThenDataThenPipeline) {
  const Mesh mesh = MakeMesh({.data = 2, .pipeline = 3, .tensor = 2});
  EXPECT_EQ(mesh.world_size(), 12);
  EXPECT_EQ(mesh.CoordinateOf(1), (Coordinate{.data = 0, .pipeline = 0, .tensor = 1}));
  EXPECT_EQ(mesh.CoordinateOf(2), (Coordinate{.data = 1, .pipeline = 0, .tensor = 0}));
  EXPECT_EQ(mesh.CoordinateOf(4), (Coordinate{.data = 0, .pipeline = 1, .tensor = 0}));
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    EXPECT_EQ(mesh.RankOf(mesh.CoordinateOf(rank)), rank);
  }
}

TEST(Mesh, ListsEachGroupOnceWithAscendingRanks) {
  const Mesh mesh = MakeMesh({.data = 2, .pipeline = 2, .tensor = 1});
  std::vector<std::string> names;
  for (const Group& group : mesh.Groups()) names.push_back(group.name);
  EXPECT_THAT(names, ElementsAre("dp0.t0", "dp1.t0", "pp0.t0", "pp1.t0"));
  EXPECT_THAT(mesh.GroupOf(GroupKind::kData, 3).ranks, ElementsAre(2, 3));
  EXPECT_THAT(mesh.GroupOf(GroupKind::kPipeline, 3).ranks, ElementsAre(1, 3));
}

TEST(Mesh, TensorRanksHaveAGroup) {
  const Mesh mesh = MakeMesh({.data = 2, .pipeline = 2, .tensor = 2});
  std::vector<std::string> names;
  for (const Group& group : mesh.Groups()) names.push_back(group.name);
  EXPECT_THAT(names, ElementsAre("dp0.t0", "dp0.t1", "dp1.t0", "dp1.t1", "pp0.t0", "pp0.t1",
                                 "pp1.t0", "pp1.t1", "tp0.d0", "tp0.d1", "tp1.d0", "tp1.d1"));
  EXPECT_THAT(mesh.GroupOf(GroupKind::kTensor, 6).ranks, ElementsAre(6, 7));
}

TEST(Mesh, GroupsOfOneKindPartitionTheWorld) {
  const Mesh mesh = MakeMesh({.data = 3, .pipeline = 4, .tensor = 2});
  EXPECT_EQ(mesh.Groups().size(), 4u * 2 + 3 * 2 + 4 * 3);
  EXPECT_EQ(mesh.Kinds().size(), 3u);
  for (const GroupKind kind : mesh.Kinds()) {
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const Group group = mesh.GroupOf(kind, rank);
      EXPECT_EQ(group.name, mesh.GroupName(kind, rank));
      EXPECT_EQ(group.ranks[mesh.IndexInGroup(kind, rank)], rank);
      for (const int member : group.ranks) EXPECT_EQ(mesh.GroupName(kind, member), group.name);
    }
  }
}

TEST(Mesh, AFurtherAxisIsARowInItsPlaceAmongTheOthers) {
  const Mesh mesh = ExpertMesh({.data = 2, .pipeline = 3, .tensor = 2}, 2);
  EXPECT_EQ(mesh.world_size(), 24);
  EXPECT_EQ(mesh.SizesText(), "data 2 x pipeline 3 x tensor 2 x expert 2");
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const Coordinate at = mesh.CoordinateOf(rank);
    EXPECT_EQ(at.tensor, rank % 2);
    EXPECT_EQ(At(at, kExpertAxis), rank / 2 % 2);
    EXPECT_EQ(at.data, rank / 4 % 2);
    EXPECT_EQ(at.pipeline, rank / 8);
    EXPECT_EQ(mesh.RankOf(at), rank);
  }
}

TEST(Mesh, AFurtherAxisHasItsGroupsAndANameInThoseOfOthers) {
  const Mesh mesh = ExpertMesh({.data = 2, .pipeline = 2, .tensor = 2}, 2);
  EXPECT_TRUE(mesh.Has(kExpertGroup));
  EXPECT_EQ(mesh.Kinds().back(), kStageGroup);
  EXPECT_EQ(mesh.Name(kExpertGroup), "expert");
  EXPECT_EQ(mesh.OnlyAxisOf(kExpertGroup), kExpertAxis);
  EXPECT_EQ(mesh.OnlyAxisOf(kStageGroup), std::nullopt);
  EXPECT_EQ(mesh.GroupName(kExpertGroup, 9), "ep1.d0.t1");
  EXPECT_THAT(mesh.GroupOf(kExpertGroup, 9).ranks, ElementsAre(9, 11));
  EXPECT_EQ(mesh.GroupName(GroupKind::kData, 3), "dp0.e1.t1");
  EXPECT_THAT(mesh.GroupOf(GroupKind::kData, 3).ranks, ElementsAre(3, 7));
  EXPECT_THAT(mesh.GroupOf(kStageGroup, 9).ranks, ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
  for (const GroupKind kind : mesh.Kinds()) {
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const Group group = mesh.GroupOf(kind, rank);
      EXPECT_EQ(group.ranks[mesh.IndexInGroup(kind, rank)], rank);
      for (const int member : group.ranks) EXPECT_EQ(mesh.GroupName(kind, member), group.name);
    }
  }
}

TEST(Mesh, AFurtherAxisOfOnePositionChangesNothing) {
  const Mesh mesh = MakeMesh({.data = 2, .pipeline = 2, .tensor = 2});
  const Mesh same = ExpertMesh({.data = 2, .pipeline = 2, .tensor = 2}, 1);
  EXPECT_FALSE(same.Has(kExpertGroup));
  EXPECT_EQ(same.Kinds(), mesh.Kinds());
  const std::vector<Group> groups = mesh.Groups();
  const std::vector<Group> same_groups = same.Groups();
  ASSERT_EQ(same_groups.size(), groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    EXPECT_EQ(same_groups[i].name, groups[i].name);
    EXPECT_EQ(same_groups[i].ranks, groups[i].ranks);
  }
}

TEST(Mesh, RefusesSizesBelowOneAndTooManyRanks) {
  const absl::Status zero = Mesh::Create({.data = 0}).status();
  EXPECT_EQ(zero.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(zero.message(), HasSubstr("data 0"));
  EXPECT_EQ(Mesh::Create({.data = 1 << 30, .pipeline = 1 << 30, .tensor = 1 << 30}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace megascale::plan
