// What the page is told of a mesh, also of one with an axis that jobs do not have.
#include "controlplane/page/mesh_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "controlplane/page/static_files.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/testing/expert_mesh.h"

namespace megascale::page {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// 2 stages of 3 replicas of 4 experts of 2 tensor-parallel ranks.
plan::Mesh MeshWithExperts() {
  return plan::ExpertMesh({.data = 3, .pipeline = 2, .tensor = 2}, 4);
}

TEST(MeshJsonTest, TellsEachAxisFromTheMostDistantNeighboursOn) {
  const json axes = MeshJson(MeshWithExperts())["axes"];
  std::vector<std::string> names;
  std::vector<int> strides;
  for (const json& axis : axes) {
    names.push_back(axis["name"]);
    strides.push_back(axis["stride"]);
  }
  EXPECT_THAT(names, ElementsAre("pipeline", "data", "expert", "tensor"));
  EXPECT_THAT(strides, ElementsAre(24, 8, 2, 1));
  EXPECT_EQ(axes[0]["position"], "stage");
  EXPECT_EQ(axes[2]["position"], "expert");
  EXPECT_EQ(axes[2]["size"], 4);
  EXPECT_EQ(axes[2]["plural"], "expert-parallel ranks");
}

TEST(MeshJsonTest, RanksAlongAnAxisDifferInThisAxisAlone) {
  const plan::Mesh mesh = MeshWithExperts();
  EXPECT_THAT(RanksAlong(mesh, plan::kExpertAxis, 29), ElementsAre(25, 27, 29, 31));
  EXPECT_THAT(RanksAlong(mesh, plan::Axis::kPipeline, 29), ElementsAre(5, 29));
  EXPECT_EQ(AxisFromWord(mesh, "expert").value(), plan::kExpertAxis);
  const absl::Status unknown = AxisFromWord(mesh, "x").status();
  EXPECT_TRUE(absl::IsInvalidArgument(unknown));
  EXPECT_THAT(unknown.message(), HasSubstr("data, pipeline, tensor, expert"));
}

TEST(MeshJsonTest, TheScriptsKnowNoAxis) {
  for (const StaticFile& file : StaticFiles()) {
    const std::string text(file.data, file.size_bytes);
    for (const char* field : {"mesh.data", "mesh.pipeline", "mesh.tensor", "at.data", "at.pipeline",
                              "at.tensor", "tensor: "}) {
      EXPECT_THAT(text, Not(HasSubstr(field))) << file.name;
    }
  }
}

}  // namespace
}  // namespace megascale::page
