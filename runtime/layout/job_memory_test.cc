// The memory of machines, which is computed by role, against what each rank needs by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/checkpoint/product_table.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/comm/host/region.h"
#include "runtime/engine/testing/test_job.h"
#include "runtime/job/job_spec.h"
#include "runtime/layout/groups.h"
#include "runtime/layout/node_memory.h"
#include "runtime/layout/rank_layout.h"
#include "runtime/layout/rank_memory.h"

namespace megascale::layout {
namespace {

struct Shape {
  int data = 1;
  int pipeline = 1;
  int tensor = 1;
  int virtual_stages = 1;
  bool on_gpus = false;
};

job::v1::JobSpec JobOf(const Shape& shape) {
  job::v1::JobSpec spec = engine::ToyJob("/text", /*data=*/1, /*pipeline=*/1);
  spec.mutable_parallel()->set_data_parallel_size(shape.data);
  spec.mutable_parallel()->set_pipeline_model_parallel_size(shape.pipeline);
  spec.mutable_model()->set_hidden_size(64);
  spec.mutable_model()->set_num_attention_heads(4);
  spec.mutable_model()->set_num_key_value_heads(4);
  spec.mutable_model()->set_num_hidden_layers(shape.pipeline * shape.virtual_stages);
  spec.mutable_train()->set_global_batch_size(2 * shape.data * shape.pipeline);
  spec.mutable_parallel()->set_tensor_model_parallel_size(shape.tensor);
  spec.mutable_parallel()->set_virtual_pipeline_model_parallel_size(shape.virtual_stages);
  if (shape.virtual_stages > 1) {
    spec.mutable_parallel()->set_pipeline_schedule(job::v1::PIPELINE_SCHEDULE_INTERLEAVED_1F1B);
  }
  if (shape.on_gpus) spec.set_device(job::v1::DEVICE_CUDA);
  return job::ResolveJobSpec(spec).value();
}

std::vector<int> Ranks(int first, int end) {
  std::vector<int> ranks(static_cast<size_t>(end - first));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

// Compares a machine's memory with the sum over its ranks, each computed for itself, and with the
// regions that its agent would make for the communicators, one by one.
void ExpectOneByOne(const job::v1::JobSpec& spec, const std::vector<int>& here,
                    const NodeMemory& memory) {
  const plan::Mesh mesh = MeshOf(spec).value();
  std::vector<std::string> placements(static_cast<size_t>(mesh.world_size()), "elsewhere");
  for (const int rank : here) placements[static_cast<size_t>(rank)] = "here";
  const std::vector<comm::GroupSpec> groups = CommunicatorsOf(spec, mesh, here).value();
  EXPECT_EQ(memory.collectives,
            static_cast<int64_t>(comm::RegionBytes(groups, placements, "here")));
  ASSERT_EQ(memory.ranks.size(), here.size());
  int64_t snapshots = 0;
  for (size_t i = 0; i < here.size(); ++i) {
    EXPECT_EQ(memory.ranks[i].rank, here[i]);
    RankMemory expected = MemoryOf(spec, here[i]).value();
    expected.communicators = static_cast<int64_t>(comm::StreamBytes(groups, placements, here[i]));
    EXPECT_EQ(memory.ranks[i].memory, expected) << "rank " << here[i];
    int64_t connections = 0;
    for (const comm::GroupSpec& group : groups) {
      const bool is_member = std::count(group.ranks.begin(), group.ranks.end(), here[i]) > 0;
      for (const int rank : group.ranks) {
        connections += is_member && placements[static_cast<size_t>(rank)] == "elsewhere" ? 1 : 0;
      }
    }
    EXPECT_EQ(memory.ranks[i].num_connections(), connections) << "rank " << here[i];
    const bool has_table = spec.device() == job::v1::DEVICE_CUDA && here[i] == 0;
    snapshots += static_cast<int64_t>(
        checkpoint::SnapshotBytes(SnapshotPayloadBytes(spec, here[i]).value(),
                                  has_table ? checkpoint::kProductTableBytesMax : 0));
  }
  EXPECT_EQ(memory.snapshots, snapshots);
}

TEST(JobMemoryTest, AMachineNeedsWhatItsRanksNeedOneByOne) {
  for (const Shape& shape :
       {Shape{}, Shape{.data = 4}, Shape{.data = 2, .pipeline = 2}, Shape{.pipeline = 3},
        Shape{.data = 3, .pipeline = 2, .tensor = 2, .virtual_stages = 2},
        Shape{.data = 2, .pipeline = 2, .tensor = 4, .on_gpus = true}}) {
    const job::v1::JobSpec spec = JobOf(shape);
    JobMemory of_job = JobMemory::Create(spec).value();
    const int world = job::WorldSize(spec);
    for (const int slots : {1, 2, 3, world}) {
      for (int first = 0; first < world; first += slots) {
        const std::vector<int> here = Ranks(first, std::min(first + slots, world));
        const NodeMemory memory = of_job.OfMachine(here).value();
        ExpectOneByOne(spec, here, memory);
        const NodeMemory exchanges = of_job.ExchangesOfMachine(here);
        EXPECT_EQ(exchanges.collectives, memory.collectives);
        for (size_t i = 0; i < here.size(); ++i) {
          EXPECT_EQ(exchanges.ranks[i].rank, here[i]);
          EXPECT_EQ(exchanges.ranks[i].num_connections(), memory.ranks[i].num_connections());
          EXPECT_EQ(exchanges.ranks[i].memory.communicators, memory.ranks[i].memory.communicators);
        }
      }
    }
    EXPECT_EQ(of_job.OfMachine({world}).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

// The largest job of the paper: what a rank needs grows with its groups alone.
TEST(JobMemoryTest, ARankOfTwelveThousandCommunicatesWithin256MiBAnd2000Descriptors) {
  job::v1::JobSpec spec = JobOf({.pipeline = 8, .tensor = 4});
  spec.mutable_model()->set_hidden_size(4096);  // all data rings are as large as they get
  spec.mutable_model()->set_num_attention_heads(8);
  spec.mutable_model()->set_num_key_value_heads(8);
  spec.mutable_model()->clear_head_dim();
  spec.mutable_model()->clear_intermediate_size();
  spec.mutable_parallel()->set_data_parallel_size(192);
  spec.mutable_parallel()->set_tensor_model_parallel_size(8);
  spec.mutable_train()->set_global_batch_size(192 * 8);
  spec.mutable_train()->set_micro_batch_size(1);
  spec.mutable_train()->set_seq_length(16);
  spec.mutable_model()->clear_max_position_embeddings();
  spec = job::ResolveJobSpec(spec).value();
  ASSERT_EQ(job::WorldSize(spec), 12288);
  const NodeMemory memory = JobMemory::Create(spec).value().OfMachine(Ranks(64, 72)).value();
  ASSERT_EQ(memory.ranks.size(), 8u);
  for (const NodeMemory::Rank& rank : memory.ranks) {
    // 191 replicas; 7 stages, each in four directions and for norms.
    EXPECT_EQ(rank.num_connections(), 191 + 7 * 5);
    EXPECT_LE(rank.num_descriptors(), 2000);
    const int64_t shared = memory.collectives / 8;
    EXPECT_LE(rank.memory.communicators + shared, int64_t{256} << 20);
  }
}

TEST(JobMemoryTest, AMeshThatNeedsMoreThanTheMachineHasIsRefusedWithGroupMembersAndSum) {
  const job::v1::JobSpec spec = JobOf({.data = 16, .pipeline = 2});
  const NodeMemory memory = JobMemory::Create(spec).value().OfMachine({0}).value();
  EXPECT_EQ(CheckDescriptors(memory, 15 + 3 + 64), absl::OkStatus());
  EXPECT_EQ(
      CheckDescriptors(memory, 15 + 3 + 63).message(),
      "descriptors: rank 0 needs 15 (data group of 16 ranks) + 3 (pipeline group of 2 ranks) "
      "+ 64 (the process) = 82, for its connections to other machines; the limit is 81; raise "
      "the agent's limit (ulimit -Hn, or LimitNOFILE of its unit), or make the largest group "
      "smaller");
  const int64_t rings = memory.ranks[0].memory.communicators + memory.collectives;
  const auto limit = [](int64_t available) {
    return base::MemoryLimit{
        .available_bytes = available, .limit_bytes = available, .source = "a test"};
  };
  EXPECT_EQ(CheckRings(memory, limit(rings)), absl::OkStatus());
  const absl::Status refused = CheckRings(memory, limit(rings - 1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  for (const char* part : {"(data groups of 16 ranks) + ", "(pipeline groups of 2 ranks) + ",
                           "(within the machine) = ", "left by a test"}) {
    EXPECT_NE(refused.message().find(part), absl::string_view::npos) << refused.message();
  }
}

TEST(JobMemoryTest, ReplicasMakeNoWorkOfTheirOwn) {
  for (const int data : {1, 16}) {
    const job::v1::JobSpec spec = JobOf({.data = data, .pipeline = 2, .tensor = 2});
    JobMemory of_job = JobMemory::Create(spec).value();
    for (int rank = 0; rank < job::WorldSize(spec); ++rank) {
      ASSERT_TRUE(of_job.OfMachine({rank}).ok());
    }
    ASSERT_TRUE(of_job.OfMachine(Ranks(0, job::WorldSize(spec))).ok());
    EXPECT_EQ(of_job.num_plans(), 2u);    // of the two stages
    EXPECT_EQ(of_job.num_layouts(), 4u);  // of their tensor ranks
    EXPECT_EQ(of_job.num_shards(), static_cast<size_t>(job::WorldSize(spec)));
  }
}

}  // namespace
}  // namespace megascale::layout
