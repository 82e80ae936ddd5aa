#include "runtime/plan/role_map.h"

#include <gtest/gtest.h>

#include <vector>

#include "runtime/plan/testing/expert_mesh.h"

namespace megascale::plan {
namespace {

TEST(RoleMap, ByStageNumbersRolesLikeStages) {
  const Mesh mesh = Mesh::Create({.data = 3, .pipeline = 4, .tensor = 2}).value();
  const RoleMap roles = RoleMap::ByStage(mesh);
  ASSERT_EQ(roles.num_roles(), 4);
  ASSERT_EQ(roles.num_ranks(), 24);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    EXPECT_EQ(roles.RoleOf(rank), mesh.CoordinateOf(rank).pipeline);
  }
  for (int role = 0; role < 4; ++role) {
    EXPECT_EQ(roles.FirstRankOf(role), mesh.RankOf({.pipeline = role}));
  }
}

TEST(RoleMap, ByAxesGivesRanksWithEqualPlacesOneRole) {
  const Mesh mesh = ExpertMesh({.data = 2, .pipeline = 2, .tensor = 2}, 2);
  const RoleMap roles = RoleMap::ByAxes(mesh, {Axis::kPipeline, kExpertAxis});
  EXPECT_EQ(roles.num_roles(), 4);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    for (int other = 0; other < mesh.world_size(); ++other) {
      const Coordinate a = mesh.CoordinateOf(rank);
      const Coordinate b = mesh.CoordinateOf(other);
      EXPECT_EQ(roles.RoleOf(rank) == roles.RoleOf(other),
                a.pipeline == b.pipeline && At(a, kExpertAxis) == At(b, kExpertAxis));
    }
  }
  EXPECT_EQ(RoleMap::ByAxes(mesh, AxisSet::All()).num_roles(), mesh.world_size());
  EXPECT_EQ(RoleMap::ByAxes(mesh, {}).num_roles(), 1);
}

TEST(RoleMap, CountsAnyNumbersByTheirFirstRank) {
  const RoleMap roles = RoleMap::Of({7, 7, -1, 3, -1});
  ASSERT_EQ(roles.num_roles(), 3);
  EXPECT_EQ(roles.RoleOf(1), 0);
  EXPECT_EQ(roles.RoleOf(4), 1);
  EXPECT_EQ(roles.RoleOf(3), 2);
  EXPECT_EQ(roles.FirstRankOf(1), 2);
}

TEST(RoleMap, TemplatesAreThePlansOfTheFirstRanksInOrder) {
  RankPlan first;
  first.mesh = Mesh::Create({.data = 2, .pipeline = 2}).value();
  RankPlan second = first;
  second.rank = 2;
  const RoleMap roles = RoleMap::ByStage(first.mesh);
  EXPECT_TRUE(roles.AreTemplates({first, second}));
  EXPECT_FALSE(roles.AreTemplates({second, first}));
  EXPECT_FALSE(roles.AreTemplates({first}));
  second.mesh = Mesh::Create({.data = 3, .pipeline = 2}).value();
  EXPECT_FALSE(roles.AreTemplates({first, second}));
}

}  // namespace
}  // namespace megascale::plan
