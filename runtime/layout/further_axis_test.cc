// A further axis of the mesh is rows of a table: what a rank holds, its communicators, its plan and
// the proof of all plans follow from them. The axis of these tests, experts, is in no job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "runtime/engine/testing/test_job.h"
#include "runtime/job/job_spec.h"
#include "runtime/layout/groups.h"
#include "runtime/layout/rank_layout.h"
#include "runtime/plan/build/roles.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/plan/check/validate_roles.h"
#include "runtime/plan/check/validate_step.h"
#include "runtime/plan/testing/expert_mesh.h"

namespace megascale::layout {
namespace {

constexpr int kExperts = 2;

job::v1::JobSpec Job() {
  job::v1::JobSpec spec = engine::ToyJob("/unread.txt", /*data=*/2, /*pipeline=*/2);
  spec.mutable_parallel()->set_tensor_model_parallel_size(2);
  return job::ResolveJobSpec(spec).value();
}

plan::Mesh MeshWithExperts() {
  return plan::ExpertMesh({.data = 2, .pipeline = 2, .tensor = 2}, kExperts);
}

// Returns the rank of the job's own mesh that differs from `rank` in the further axis alone.
int WithoutExperts(const plan::Mesh& own, const plan::Mesh& mesh, int rank) {
  plan::Coordinate at = mesh.CoordinateOf(rank);
  At(at, plan::kExpertAxis) = 0;
  return own.RankOf(at);
}

TEST(FurtherAxis, ARankHoldsWhatItsPlaceOnTheOtherAxesSays) {
  const job::v1::JobSpec spec = Job();
  const plan::Mesh own = MeshOf(spec).value();
  const plan::Mesh mesh = MeshWithExperts();
  ASSERT_EQ(mesh.world_size(), kExperts * own.world_size());
  std::set<int> experts;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const RankLayout part = RankLayoutOf(spec, mesh, rank).value();
    const RankLayout expected = RankLayoutOf(spec, WithoutExperts(own, mesh, rank)).value();
    experts.insert(At(part.coordinate, plan::kExpertAxis));
    EXPECT_EQ(part.coordinate.data, expected.coordinate.data) << rank;
    EXPECT_EQ(part.tensor.index, expected.tensor.index) << rank;
    EXPECT_EQ(part.plan_options.num_buckets, expected.plan_options.num_buckets) << rank;
    ASSERT_EQ(part.shards.size(), expected.shards.size()) << rank;
    for (size_t i = 0; i < part.shards.size(); ++i) {
      EXPECT_EQ(part.shards[i].range.first_layer, expected.shards[i].range.first_layer) << rank;
      EXPECT_EQ(part.shards[i].shard_index, expected.shards[i].shard_index) << rank;
      EXPECT_EQ(part.shards[i].num_shards, expected.shards[i].num_shards) << rank;
    }
  }
  EXPECT_EQ(experts.size(), size_t{kExperts});
}

TEST(FurtherAxis, EveryGroupGetsItsCommunicators) {
  const job::v1::JobSpec spec = Job();
  const plan::Mesh mesh = MeshWithExperts();
  std::vector<int> all;
  for (int rank = 0; rank < mesh.world_size(); ++rank) all.push_back(rank);
  std::set<std::string> names;
  const std::vector<comm::GroupSpec> communicators = CommunicatorsOf(spec, mesh, all).value();
  for (const comm::GroupSpec& communicator : communicators) {
    EXPECT_TRUE(names.insert(communicator.name).second) << communicator.name;
  }
  EXPECT_EQ(names.count("dp0.e1.t0/shard"), 1u);
  EXPECT_EQ(names.count("pp1.e0.t1/activation.0"), 1u);
  EXPECT_EQ(names.count("tp1.d0.e1/pass"), 1u);
}

TEST(FurtherAxis, ThePlansOfAllRanksAreProvedAndThoseOfRolesServeThem) {
  for (const int zero_stage : {1, 2}) {
    plan::PlanOptions options = RankLayoutOf(Job(), MeshWithExperts(), 0).value().plan_options;
    options.zero_stage = zero_stage;
    const std::vector<plan::RankPlan> roles = plan::BuildRolePlans(options).value();
    EXPECT_EQ(plan::ValidateRolePlans(roles), absl::OkStatus());
    std::vector<plan::RankPlan> plans;
    for (int rank = 0; rank < options.mesh.world_size(); ++rank) {
      plans.push_back(plan::BuildTrainPlan(options, rank).value());
      EXPECT_EQ(plans.back().instructions, plan::PlanOfRank(roles, rank).instructions) << rank;
    }
    EXPECT_EQ(plan::ValidatePlans(plans), absl::OkStatus());
    // A rank that exchanges less than its peers is found among the experts, too.
    const auto exchange = std::find_if(
        plans[2].instructions.begin(), plans[2].instructions.end(), [](const auto& instruction) {
          return instruction.kind() == plan::OpKind::kReduceGradients;
        });
    ASSERT_NE(exchange, plans[2].instructions.end());
    exchange->bytes += 4;
    EXPECT_EQ(plan::ValidatePlans(plans).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace megascale::layout
