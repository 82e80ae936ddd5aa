// What holds for every mesh though no group has all ranks: whom a rank meets, and how the numbers
// of all ranks become one.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/plan/build/channels.h"
#include "runtime/plan/build/roles.h"
#include "runtime/plan/check/validate_roles.h"
#include "runtime/plan/plan_options.h"

namespace megascale::plan {
namespace {

std::vector<PlanOptions> Meshes() {
  std::vector<PlanOptions> all;
  for (const int data : {1, 2, 3, 5}) {
    for (const int pipeline : {1, 2, 3, 4}) {
      for (const int tensor : {1, 2, 3}) {
        PlanOptions options;
        options.mesh = Mesh::Create({.data = data, .pipeline = pipeline, .tensor = tensor}).value();
        options.num_microbatches = pipeline;
        options.has_trust_ratios = (data + pipeline + tensor) % 2 == 0;
        options.has_tied_ends = pipeline > 1 && data % 2 == 0;
        all.push_back(options);
        if (pipeline == 1) continue;
        options.schedule = Schedule::kInterleaved1F1B;
        options.chunks_per_stage = 2;
        all.push_back(options);
      }
    }
  }
  return all;
}

TEST(AllRanks, NoRankHasMorePeersThanItsTensorDataAndPipelineGroupsHaveMembers) {
  for (const PlanOptions& options : Meshes()) {
    const Mesh& mesh = options.mesh;
    const std::vector<Channel> channels =
        ChannelsOf(mesh, {.chunks_per_stage = options.chunks_per_stage,
                          .has_trust_ratios = options.has_trust_ratios,
                          .has_tied_ends = options.has_tied_ends});
    const size_t expected = mesh.tensor_size() + mesh.data_size() + mesh.pipeline_size() - 3;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      std::set<int> peers;
      for (const Channel& channel : channels) {
        const std::vector<int> members = mesh.GroupOf(channel.group, rank).ranks;
        peers.insert(members.begin(), members.end());
      }
      peers.erase(rank);
      ASSERT_EQ(peers.size(), expected) << mesh.SizesText() << ", rank " << rank;
    }
    // No instruction has another group or channel.
    const std::vector<RankPlan> roles = BuildRolePlans(options).value();
    for (const RankPlan& plan : roles) {
      for (const Instruction& instruction : plan.instructions) {
        if (instruction.group == GroupKind::kNone) continue;
        ASSERT_NE(std::find(channels.begin(), channels.end(),
                            Channel{instruction.group, instruction.channel}),
                  channels.end())
            << mesh.SizesText() << ": " << instruction.id.ToString();
      }
    }
  }
}

// The sum of a group as text: what each member contributes, in their order.
std::string SumOf(const Mesh& mesh, GroupKind group, int rank,
                  const std::vector<std::string>& contributed) {
  std::string sum = "(";
  for (const int member : mesh.GroupOf(group, rank).ranks) {
    absl::StrAppend(&sum, contributed[static_cast<size_t>(member)], ",");
  }
  return sum + ")";
}

// Follows what each rank has through the gathers of its plan.
TEST(AllRanks, NormsBecomeOneSumThatHasEveryRankOnceAndIsTheSameOnAll) {
  for (const PlanOptions& options : Meshes()) {
    const Mesh& mesh = options.mesh;
    const std::vector<RankPlan> roles = BuildRolePlans(options).value();
    ASSERT_TRUE(ValidateRolePlans(roles).ok()) << mesh.SizesText();
    std::vector<GroupKind> gathers;
    for (const Instruction& instruction : roles[0].instructions) {
      const OpKind kind = instruction.kind();
      if (kind == OpKind::kGatherTensorNorms || kind == OpKind::kGatherDataNorms ||
          kind == OpKind::kReduceNorm) {
        gathers.push_back(instruction.group);
      }
    }
    std::vector<std::string> has;
    for (int rank = 0; rank < mesh.world_size(); ++rank) has.push_back(absl::StrCat(rank));
    for (const GroupKind group : gathers) {
      std::vector<std::string> sums;
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        sums.push_back(SumOf(mesh, group, rank, has));
      }
      has = sums;
    }
    // Without the parentheses: all ranks, in their order.
    std::string in_order = has[0], expected;
    std::erase_if(in_order, [](char c) { return c == '(' || c == ')'; });
    for (int rank = 0; rank < mesh.world_size(); ++rank) absl::StrAppend(&expected, rank, ",");
    for (size_t at; (at = in_order.find(",,")) != std::string::npos;) in_order.erase(at, 1);
    EXPECT_EQ(in_order, expected) << mesh.SizesText();
    for (const std::string& sum : has) ASSERT_EQ(sum, has[0]) << mesh.SizesText();
  }
}

}  // namespace
}  // namespace megascale::plan
