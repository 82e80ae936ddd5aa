#include "runtime/simulate/links.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "runtime/plan/build/roles.h"
#include "runtime/plan/build/step_plan.h"

namespace megascale::simulate {
namespace {

using plan::GroupKind;
using plan::Instruction;
using plan::OpKind;
using plan::RankPlan;
using plan::RoleMap;

plan::PlanOptions Shape(const plan::MeshSizes& sizes) {
  plan::PlanOptions options;
  options.mesh = plan::Mesh::Create(sizes).value();
  options.num_microbatches = 2;
  return options;
}

// Returns the link of the first instruction of this kind.
Link LinkOf(const Links& links, const RankPlan& plan, OpKind kind) {
  for (const Instruction& instruction : plan.instructions) {
    if (instruction.kind() == kind) return links.Of(plan, instruction);
  }
  ADD_FAILURE() << "rank " << plan.rank << " has no " << plan::Letters(kind);
  return Link::kInMachine;
}

// The links of the first rank of each stage.
struct Stages {
  explicit Stages(const plan::MeshSizes& sizes, int ranks_per_machine)
      : plans(plan::BuildRolePlans(Shape(sizes)).value()),
        links(plans, RoleMap::ByStage(plans[0].mesh), ranks_per_machine) {}
  std::vector<RankPlan> plans;
  Links links;
};

TEST(LinksTest, AGroupIsInsideAMachineIfAllItsMembersAre) {
  // Machines of ranks 0 to 3 and 4 to 7; tensor ranks are neighbours, then data, then pipeline.
  const Stages two({.data = 2, .pipeline = 2, .tensor = 2}, 4);
  const std::map<GroupKind, Link> expected = {{GroupKind::kData, Link::kInMachine},
                                              {GroupKind::kPipeline, Link::kBetweenMachines},
                                              {GroupKind::kTensor, Link::kInMachine}};
  EXPECT_EQ(two.links.by_group(), expected);
  for (const RankPlan& plan : two.plans) {
    EXPECT_EQ(LinkOf(two.links, plan, OpKind::kForward), Link::kInMachine);
    EXPECT_EQ(LinkOf(two.links, plan, OpKind::kReduceGradients), Link::kInMachine);
    EXPECT_EQ(LinkOf(two.links, plan, OpKind::kReduceNorm), Link::kBetweenMachines);
    EXPECT_EQ(LinkOf(two.links, plan, OpKind::kOptimizerStep), Link::kInMachine)
        << "exchanges nothing";
  }
  EXPECT_EQ(LinkOf(two.links, two.plans[0], OpKind::kSendActivation), Link::kBetweenMachines);
  const Stages four({.data = 2, .pipeline = 2, .tensor = 2}, 2);
  EXPECT_EQ(four.links.by_group().at(GroupKind::kData), Link::kBetweenMachines);
  EXPECT_EQ(four.links.by_group().at(GroupKind::kTensor), Link::kInMachine);
}

TEST(LinksTest, OneMachineRunsAllRanksUnlessToldOtherwise) {
  for (const int ranks_per_machine : {0, 8, 9}) {
    const Stages stages({.data = 2, .pipeline = 2, .tensor = 2}, ranks_per_machine);
    for (const auto& [group, link] : stages.links.by_group()) {
      EXPECT_EQ(link, Link::kInMachine) << ranks_per_machine;
    }
  }
}

TEST(LinksTest, ATransferRunsOnTheLinkBetweenItsTwoRanks) {
  // Stages 0 and 1 share a machine, as do 2 and 3.
  const Stages stages({.pipeline = 4}, 2);
  EXPECT_EQ(LinkOf(stages.links, stages.plans[0], OpKind::kSendActivation), Link::kInMachine);
  EXPECT_EQ(LinkOf(stages.links, stages.plans[1], OpKind::kReceiveActivation), Link::kInMachine);
  EXPECT_EQ(LinkOf(stages.links, stages.plans[1], OpKind::kSendActivation), Link::kBetweenMachines);
  EXPECT_EQ(LinkOf(stages.links, stages.plans[1], OpKind::kSendGradient), Link::kInMachine);
  EXPECT_EQ(LinkOf(stages.links, stages.plans[2], OpKind::kReceiveActivation),
            Link::kBetweenMachines);
}

TEST(LinksTest, ARoleHasTheSlowestLinkOfItsReplicas) {
  // Three replicas of two stages on machines of four ranks: ranks 0 and 3 share a machine, 1 and 4,
  // 2 and 5 do not.
  const plan::PlanOptions options = Shape({.data = 3, .pipeline = 2});
  const Stages stages({.data = 3, .pipeline = 2}, 4);
  EXPECT_EQ(LinkOf(stages.links, stages.plans[0], OpKind::kSendActivation), Link::kBetweenMachines);
  std::vector<RankPlan> all;
  std::vector<int> ranks;
  for (int rank = 0; rank < options.mesh.world_size(); ++rank) {
    all.push_back(plan::BuildTrainPlan(options, rank).value());
    ranks.push_back(rank);
  }
  const Links each(all, RoleMap::Of(ranks), 4);
  EXPECT_EQ(LinkOf(each, all[0], OpKind::kSendActivation), Link::kInMachine);
  EXPECT_EQ(LinkOf(each, all[1], OpKind::kSendActivation), Link::kBetweenMachines);
  EXPECT_EQ(LinkOf(each, all[0], OpKind::kReduceGradients), Link::kInMachine) << "ranks 0 to 2";
  EXPECT_EQ(LinkOf(each, all[3], OpKind::kReduceGradients), Link::kBetweenMachines)
      << "ranks 3 to 5";
}

}  // namespace
}  // namespace megascale::simulate
