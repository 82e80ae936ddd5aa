#include "runtime/layout/groups.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace megascale::layout {
namespace {

job::v1::JobSpec Job(int data, int pipeline, int tensor) {
  job::v1::JobSpec spec;
  spec.mutable_parallel()->set_data_parallel_size(data);
  spec.mutable_parallel()->set_pipeline_model_parallel_size(pipeline);
  spec.mutable_parallel()->set_tensor_model_parallel_size(tensor);
  spec.mutable_parallel()->set_virtual_pipeline_model_parallel_size(1);
  return spec;
}

std::vector<int> Ranks(int first, int count) {
  std::vector<int> ranks;
  for (int rank = first; rank < first + count; ++rank) ranks.push_back(rank);
  return ranks;
}

std::set<std::string> Names(const std::vector<comm::GroupSpec>& communicators) {
  std::set<std::string> names;
  for (const comm::GroupSpec& communicator : communicators) names.insert(communicator.name);
  return names;
}

TEST(CommunicatorsOfTest, AMachineGetsThoseOfItsRanksInTheOrderOfTheWholeJob) {
  const job::v1::JobSpec spec = Job(3, 2, 2);
  const plan::Mesh mesh = MeshOf(spec).value();
  const auto all = CommunicatorsOf(spec, mesh, Ranks(0, mesh.world_size()));
  std::set<std::string> of_machines;
  for (int first = 0; first < mesh.world_size(); first += 4) {
    const std::vector<int> here = Ranks(first, 4);
    const auto local = CommunicatorsOf(spec, mesh, here);
    std::vector<comm::GroupSpec> expected;
    for (const comm::GroupSpec& communicator : all) {
      const bool is_here = std::any_of(here.begin(), here.end(), [&](int rank) {
        return std::count(communicator.ranks.begin(), communicator.ranks.end(), rank) > 0;
      });
      if (is_here) expected.push_back(communicator);
    }
    ASSERT_EQ(local.size(), expected.size());
    for (size_t i = 0; i < local.size(); ++i) {
      EXPECT_EQ(local[i].name, expected[i].name);
      EXPECT_EQ(local[i].ranks, expected[i].ranks);
    }
    of_machines.merge(Names(local));
  }
  EXPECT_EQ(of_machines, Names(all));
}

TEST(CommunicatorsOfTest, OneOfManyMachinesMakesFewGroups) {
  const job::v1::JobSpec spec = Job(192, 8, 8);
  const plan::Mesh mesh = MeshOf(spec).value();
  ASSERT_EQ(mesh.world_size(), 12288);
  // A machine of eight tensor ranks: the world, 8 data groups, 4 directions of 8 pipelines, and one
  // group of tensor ranks with two channels.
  EXPECT_EQ(CommunicatorsOf(spec, mesh, Ranks(64, 8)).size(), 1u + 8u + 4u * 8u + 2u);
}

TEST(RanksOnTest, AreThoseOfTheMachineAscending) {
  EXPECT_EQ(RanksOn({"a", "b", "a", "c"}, "a"), (std::vector<int>{0, 2}));
  EXPECT_EQ(RanksOn({"a", "b"}, "d"), std::vector<int>{});
}

}  // namespace
}  // namespace megascale::layout
