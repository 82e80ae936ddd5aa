#include "runtime/layout/groups.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/engine/testing/test_job.h"
#include "runtime/job/job_spec.h"
#include "runtime/layout/ring_sizes.h"

namespace megascale::layout {
namespace {

job::v1::JobSpec Job(int data, int pipeline, int tensor, int hidden_size = 64) {
  job::v1::JobSpec spec = engine::ToyJob("/unread.txt", /*data=*/1, /*pipeline=*/1);
  spec.mutable_model()->set_hidden_size(hidden_size);
  spec.mutable_model()->set_num_attention_heads(8);
  spec.mutable_model()->set_num_key_value_heads(8);
  spec.mutable_model()->clear_head_dim();
  spec.mutable_model()->clear_intermediate_size();
  spec.mutable_model()->set_num_hidden_layers(pipeline);
  spec.mutable_train()->set_global_batch_size(data * pipeline);
  spec.mutable_train()->set_micro_batch_size(1);
  spec.mutable_train()->set_seq_length(16);
  spec.mutable_model()->clear_max_position_embeddings();
  spec.mutable_parallel()->set_data_parallel_size(data);
  spec.mutable_parallel()->set_pipeline_model_parallel_size(pipeline);
  spec.mutable_parallel()->set_tensor_model_parallel_size(tensor);
  return job::ResolveJobSpec(spec).value();
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
  const auto all = CommunicatorsOf(spec, mesh, Ranks(0, mesh.world_size())).value();
  std::set<std::string> of_machines;
  for (int first = 0; first < mesh.world_size(); first += 4) {
    const std::vector<int> here = Ranks(first, 4);
    const auto local = CommunicatorsOf(spec, mesh, here).value();
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
      EXPECT_EQ(local[i].ring_bytes, expected[i].ring_bytes) << local[i].name;
    }
    of_machines.merge(Names(local));
  }
  EXPECT_EQ(of_machines, Names(all));
}

TEST(CommunicatorsOfTest, OneOfManyMachinesMakesFewGroups) {
  const job::v1::JobSpec spec = Job(192, 8, 8);
  const plan::Mesh mesh = MeshOf(spec).value();
  ASSERT_EQ(mesh.world_size(), 12288);
  // A machine of eight tensor ranks: 8 data groups, 8 pipelines with 4 directions and one channel
  // for norms, and one group of tensor ranks with two channels.
  EXPECT_EQ(CommunicatorsOf(spec, mesh, Ranks(64, 8)).value().size(), 8u + 5u * 8u + 2u);
}

size_t RingBytesOf(const job::v1::JobSpec& spec, const std::string& name) {
  const auto all = CommunicatorsOf(spec, MeshOf(spec).value(), {0}).value();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const comm::GroupSpec& one) { return one.name == name; });
  return found == all.end() ? 0 : found->ring_bytes;
}

TEST(RingSizesTest, RingsAreAsLargeAsWhatTheyCarryAllows) {
  const job::v1::JobSpec small = Job(2, 2, 2), large = Job(2, 2, 2, /*hidden_size=*/4096);
  // Norms and flags alone.
  EXPECT_EQ(RingBytesOf(small, "pp0.t0/norm"), kRingBytesMin);
  EXPECT_EQ(RingBytesOf(large, "pp0.t0/norm"), kRingBytesMin);
  for (const char* data : {"dp0.t0/shard", "pp0.t0/activation.0", "tp0.d0/pass"}) {
    EXPECT_GT(RingBytesOf(small, data), kRingBytesMin) << data;
    EXPECT_LT(RingBytesOf(small, data), kRingBytesMax) << data;
    EXPECT_EQ(RingBytesOf(large, data), kRingBytesMax) << data;
  }
  // Biases and norms of a bucket only.
  EXPECT_LT(RingBytesOf(small, "tp0.d0/replicated"), RingBytesOf(small, "dp0.t0/shard"));
}

TEST(RingSizesTest, AFewMessagesFitAndTheRingsOfALargeGroupStayWithinABound) {
  constexpr int64_t kLarge = int64_t{1} << 30;
  EXPECT_EQ(RingSizes::For(0, 2), kRingBytesMin);
  EXPECT_GE(RingSizes::For(10'000, 2), size_t{40'000});
  EXPECT_EQ(RingSizes::For(kLarge, 2), kRingBytesMax);
  EXPECT_EQ(RingSizes::For(kLarge, 65), kRingBytesMax);
  for (const int members : {66, 192, 1000, 5000}) {
    const size_t ring = RingSizes::For(kLarge, members);
    EXPECT_EQ(ring % kRingBytesMin, 0u);
    EXPECT_LE(2 * ring * static_cast<size_t>(members - 1), kRingsOfChannelMax) << members;
  }
  EXPECT_EQ(RingSizes::For(kLarge, 100'000), kRingBytesMin) << "each has a ring all the same";
}

TEST(RanksOnTest, AreThoseOfTheMachineAscending) {
  EXPECT_EQ(RanksOn({"a", "b", "a", "c"}, "a"), (std::vector<int>{0, 2}));
  EXPECT_EQ(RanksOn({"a", "b"}, "d"), std::vector<int>{});
}

}  // namespace
}  // namespace megascale::layout
