// Real processes on the strict device (strict_program.cc): the host cannot touch its memory, and
// its work runs late and in any allowed order. A worker is killed in the middle, and the job still
// ends with the bits of a calm run of the plain program.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "tests/e2e/cluster.h"
#include "tests/soak.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;

constexpr int kSteps = 40;
constexpr int kMiddle = 15;

struct Layout {
  std::string name;
  int num_agents;  // which share two slots; tensor ranks need one
  std::vector<std::string> fields;
};

const Layout kLayouts[] = {
    {"Data", 2, {"parallel.data_parallel_size=2", "parallel.pipeline_model_parallel_size=1"}},
    {"Pipeline", 2, {"parallel.data_parallel_size=1", "parallel.pipeline_model_parallel_size=2"}},
    {"Tensor",
     1,
     {"parallel.data_parallel_size=1", "parallel.pipeline_model_parallel_size=1",
      "parallel.tensor_model_parallel_size=2"}},
};

struct Ended {
  std::string digest;
  std::vector<std::string> losses;
};

class StrictProcessesTest : public ::testing::TestWithParam<Layout> {
 protected:
  // Starts a driver, the agents, and the job on them.
  static void Start(Cluster* cluster) {
    cluster->StartDriver();
    const int num_agents = GetParam().num_agents;
    for (int i = 0; i < num_agents; ++i) cluster->StartAgent(i, 2 / num_agents);
    std::vector<std::string> fields = GetParam().fields;
    fields.insert(fields.end(), {absl::StrCat("train.steps=", kSteps), "train.seq_length=32",
                                 "train.global_batch_size=8", "checkpoint.interval=5"});
    cluster->Submit("job", fields);
  }

  static Ended EndOf(const Cluster& cluster) {
    EXPECT_EQ(cluster.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
    return {cluster.Digest("job"), cluster.LossLog("job")};
  }

  // Returns what all workers of the job have logged.
  static std::string WorkerLogs(const Cluster& cluster) {
    std::string logs;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(cluster.directory())) {
      if (!absl::StartsWith(entry.path().filename().string(), "rank-")) continue;
      absl::StrAppend(&logs, base::ReadFile(entry.path().string(), 1 << 20).value_or(""));
    }
    return logs;
  }
};

TEST_P(StrictProcessesTest, AKilledWorkerIsReplacedAndTheJobEndsWithTheBitsOfTheCpu) {
  Ended calm;
  {
    Cluster cluster;
    Start(&cluster);
    calm = EndOf(cluster);
    EXPECT_EQ(cluster.Status("job").attempt(), 1);
  }
  ASSERT_EQ(calm.losses.size(), static_cast<size_t>(kSteps));

  ASSERT_EQ(::setenv("MEGASCALE_STRICT_SEED", "17", 1), 0);
  Cluster cluster;
  cluster.UseProgram(Runfile("tests/e2e/strict_program"));
  Start(&cluster);
  ASSERT_TRUE(cluster.WaitForStep("job", kMiddle));
  const Job before = cluster.Status("job");
  ASSERT_EQ(before.ranks_size(), 2);
  ASSERT_LT(before.last_step(), kSteps) << "the job ended before it could be disturbed";
  for (const auto& rank : before.ranks()) {
    EXPECT_EQ(rank.status().device().name(), "strict device");
    EXPECT_GT(rank.status().device().used_bytes(), 0);
  }
  ASSERT_EQ(::kill(before.ranks(1).status().pid(), SIGKILL), 0);
  const Ended ended = EndOf(cluster);
  EXPECT_EQ(ended.digest, calm.digest);
  EXPECT_EQ(ended.losses, calm.losses);
  EXPECT_EQ(cluster.Status("job").attempt(), before.attempt() + 1);
  EXPECT_FALSE(absl::StrContains(WorkerLogs(cluster), "host code touched device memory"));
}

// The last layout, under `./dev soak` all.
INSTANTIATE_TEST_SUITE_P(Layouts, StrictProcessesTest,
                         ::testing::ValuesIn(IsSoak() ? std::begin(kLayouts)
                                                      : std::prev(std::end(kLayouts)),
                                             std::end(kLayouts)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace megascale::e2e
