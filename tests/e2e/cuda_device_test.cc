// Real processes with `device: cuda` on an emulated GPU (cuda_program.cc): a worker is killed in
// the middle, and the job ends with the bits of a calm run under another seed of the emulator.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/product_table.h"
#include "tests/e2e/cluster.h"
#include "tests/soak.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;

constexpr int kSteps = 14;  // seconds each
constexpr int kMiddle = 5;  // beyond the first checkpoint

struct Layout {
  std::string name;
  int num_agents;  // which share two slots; tensor ranks need one
  std::vector<std::string> fields;
};

const Layout kLayouts[] = {
    {"Pipeline",
     2,
     {"parallel.data_parallel_size=1", "parallel.pipeline_model_parallel_size=2",
      "train.precision=bf16"}},
    {"Tensor",
     1,
     {"parallel.data_parallel_size=1", "parallel.pipeline_model_parallel_size=1",
      "parallel.tensor_model_parallel_size=2"}},
};

class CudaProcessesTest : public ::testing::TestWithParam<Layout> {
 protected:
  static void Start(Cluster* cluster, const char* seed) {
    ASSERT_EQ(::setenv("MEGASCALE_EMULATOR_SEED", seed, 1), 0);
    cluster->UseProgram(Runfile("tests/e2e/cuda_program"));
    cluster->StartDriver();
    const int num_agents = GetParam().num_agents;
    for (int i = 0; i < num_agents; ++i) cluster->StartAgent(i, 2 / num_agents);
    std::vector<std::string> fields = GetParam().fields;
    fields.insert(
        fields.end(),
        {"device=cuda", "device_sharing=true", "model.hidden_size=16", "model.num_hidden_layers=2",
         "model.num_attention_heads=2", absl::StrCat("train.steps=", kSteps), "train.seq_length=16",
         "train.global_batch_size=4", "train.micro_batch_size=2", "checkpoint.interval=4"});
    cluster->Submit("job", fields);
  }
};

TEST_P(CudaProcessesTest, AKilledWorkerIsReplacedAndTheBitsStay) {
  std::string calm;
  {
    Cluster cluster;
    Start(&cluster, "1");
    EXPECT_EQ(cluster.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
    calm = cluster.Digest("job");
  }
  Cluster cluster;
  Start(&cluster, "29");
  ASSERT_TRUE(cluster.WaitForStep("job", kMiddle));
  const Job before = cluster.Status("job");
  ASSERT_EQ(before.ranks_size(), 2);
  ASSERT_LT(before.last_step(), kSteps) << "the job ended before it could be disturbed";
  for (const auto& rank : before.ranks()) {
    EXPECT_EQ(rank.status().device().name(), "Emulated GPU");
    EXPECT_GT(rank.status().device().used_bytes(), 0);
  }
  const std::string folder = cluster.checkpoints("job");
  const std::string products = checkpoint::ReadProductTable(folder).value();
  ASSERT_EQ(::kill(before.ranks(1).status().pid(), SIGKILL), 0);
  EXPECT_EQ(cluster.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster.Digest("job"), calm);
  EXPECT_EQ(cluster.Status("job").attempt(), before.attempt() + 1);
  // The algorithms of the first start, which the checkpoints name.
  EXPECT_EQ(checkpoint::ReadProductTable(folder).value(), products);
  const auto checkpoints = checkpoint::ListCheckpoints(folder).value();
  ASSERT_FALSE(checkpoints.empty());
  const std::string& newest = checkpoints.front().directory();
  const auto manifest = checkpoint::ReadManifest(newest).value();
  EXPECT_EQ(checkpoint::ProductTableOfCheckpoint(manifest, newest).value(), products);
}

// The last layout, under `./dev soak` all.
INSTANTIATE_TEST_SUITE_P(Layouts, CudaProcessesTest,
                         ::testing::ValuesIn(IsSoak() ? std::begin(kLayouts)
                                                      : std::prev(std::end(kLayouts)),
                                             std::end(kLayouts)),
                         [](const auto& info) { return info.param.name; });

// Two ranks and one GPU: refused before anything starts, in one line.
TEST(CudaDeviceTest, RanksThatMayNotShareNeedAGpuEach) {
  Cluster cluster;
  cluster.UseProgram(Runfile("tests/e2e/cuda_program"));
  cluster.StartDriver();
  cluster.StartAgent(0, 2);
  cluster.Submit("job", {"device=cuda", "parallel.data_parallel_size=2",
                         "parallel.pipeline_model_parallel_size=1"});
  EXPECT_EQ(cluster.WaitForEnd("job"), control::v1::JOB_STATE_FAILED);
  EXPECT_NE(cluster.Status("job").message().find(
                "needs a GPU of its own; found 1; place fewer ranks here, or let them share"),
            std::string::npos)
      << cluster.Status("job").message();
}

}  // namespace
}  // namespace megascale::e2e
