// Real processes on the strict device (strict_program.cc): the host cannot touch its memory, and
// its work runs late and in any allowed order. A worker is killed in the middle, or an agent, whose
// machine's snapshots are lost with it, and the job still ends with the bits of a calm run of the
// plain program.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <functional>
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

const Layout kData = {
    "Data", 2, {"parallel.data_parallel_size=2", "parallel.pipeline_model_parallel_size=1"}};
const Layout kPipeline = {
    "Pipeline", 2, {"parallel.data_parallel_size=1", "parallel.pipeline_model_parallel_size=2"}};
const Layout kTensor = {"Tensor",
                        1,
                        {"parallel.data_parallel_size=1", "parallel.pipeline_model_parallel_size=1",
                         "parallel.tensor_model_parallel_size=2"}};
const Layout kLayouts[] = {kData, kPipeline, kTensor};

struct Ended {
  std::string digest;
  std::vector<std::string> losses;
};

int SlotsOf(const Layout& layout) { return 2 / layout.num_agents; }

// Starts a driver, the agents, and the job on them.
void Start(Cluster* cluster, const Layout& layout) {
  cluster->StartDriver();
  for (int i = 0; i < layout.num_agents; ++i) cluster->StartAgent(i, SlotsOf(layout));
  std::vector<std::string> fields = layout.fields;
  fields.insert(fields.end(), {absl::StrCat("train.steps=", kSteps), "train.seq_length=32",
                               "train.global_batch_size=8", "checkpoint.interval=5"});
  cluster->Submit("job", fields);
}

Ended EndOf(const Cluster& cluster) {
  EXPECT_EQ(cluster.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  return {cluster.Digest("job"), cluster.LossLog("job")};
}

// Returns what the processes of the job have logged whose names begin with `name`: "rank-", "host".
std::string LogsOf(const Cluster& cluster, const std::string& name) {
  std::string logs;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cluster.directory())) {
    if (!absl::StartsWith(entry.path().filename().string(), name)) continue;
    absl::StrAppend(&logs, base::ReadFile(entry.path().string(), 1 << 20).value_or(""));
  }
  return logs;
}

// Runs the job twice: calmly by the plain program, and on strict devices, with `disturb` in its
// middle, which ends the first attempt. Both must end equally.
void ExpectTheBitsOfTheCpu(const Layout& layout,
                           const std::function<void(Cluster&, const Job& before)>& disturb) {
  Ended calm;
  {
    Cluster cluster;
    Start(&cluster, layout);
    calm = EndOf(cluster);
    EXPECT_EQ(cluster.Status("job").attempt(), 1);
  }
  ASSERT_EQ(calm.losses.size(), static_cast<size_t>(kSteps));

  ASSERT_EQ(::setenv("MEGASCALE_STRICT_SEED", "17", 1), 0);
  Cluster cluster;
  cluster.UseProgram(Runfile("tests/e2e/strict_program"));
  Start(&cluster, layout);
  ASSERT_TRUE(cluster.WaitForStep("job", kMiddle));
  const Job before = cluster.Status("job");
  ASSERT_EQ(before.ranks_size(), 2);
  ASSERT_LT(before.last_step(), kSteps) << "the job ended before it could be disturbed";
  for (const auto& rank : before.ranks()) {
    EXPECT_EQ(rank.status().device().name(), "strict device");
    EXPECT_GT(rank.status().device().used_bytes(), 0);
  }
  disturb(cluster, before);
  const Ended ended = EndOf(cluster);
  EXPECT_EQ(ended.digest, calm.digest);
  EXPECT_EQ(ended.losses, calm.losses);
  EXPECT_EQ(cluster.Status("job").attempt(), before.attempt() + 1);
  EXPECT_FALSE(absl::StrContains(LogsOf(cluster, "rank-"), "host code touched device memory"));
}

class StrictProcessesTest : public ::testing::TestWithParam<Layout> {};

TEST_P(StrictProcessesTest, AKilledWorkerIsReplacedAndTheJobEndsWithTheBitsOfTheCpu) {
  ExpectTheBitsOfTheCpu(GetParam(), [](Cluster& /*cluster*/, const Job& before) {
    ASSERT_EQ(::kill(before.ranks(1).status().pid(), SIGKILL), 0);
  });
}

// One machine's snapshots are lost, so that both ranks read the committed checkpoint.
TEST(StrictStorageTest, AfterAKilledAgentAPipelineGoesOnFromStorageWithTheBitsOfTheCpu) {
  ExpectTheBitsOfTheCpu(kPipeline, [](Cluster& cluster, const Job& /*before*/) {
    ASSERT_TRUE(WaitUntil([&] { return cluster.Status("job").last_checkpoint().step() > 0; }, 30));
    cluster.KillAgent(1);
    cluster.StartAgent(1, SlotsOf(kPipeline));
  });
}

// A machine that has had the job's device may have it again: the job does not end.
TEST(StrictMachineTest, ADeviceThatIsGoneForAWhileEndsNoJob) {
  Cluster cluster;
  const std::string gone = cluster.directory() + "/gone";
  ASSERT_EQ(::setenv("MEGASCALE_STRICT_GONE", gone.c_str(), 1), 0);
  cluster.UseProgram(Runfile("tests/e2e/strict_program"));
  Start(&cluster, kTensor);
  ASSERT_TRUE(cluster.WaitForStep("job", kMiddle));
  ASSERT_TRUE(base::WriteFileDurably(gone, "").ok());
  ASSERT_EQ(::kill(cluster.Status("job").ranks(1).status().pid(), SIGKILL), 0);
  const auto is_missed = [&] {
    return absl::StrContains(LogsOf(cluster, "host"), "this machine has no strict device") ||
           cluster.Status("job").state() == control::v1::JOB_STATE_FAILED;
  };
  EXPECT_TRUE(WaitUntil(is_missed, 60));
  ASSERT_TRUE(std::filesystem::remove(gone));
  EXPECT_EQ(cluster.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(::unsetenv("MEGASCALE_STRICT_GONE"), 0);
}

// The last layout, under `./dev soak` all.
INSTANTIATE_TEST_SUITE_P(Layouts, StrictProcessesTest,
                         ::testing::ValuesIn(IsSoak() ? std::begin(kLayouts)
                                                      : std::prev(std::end(kLayouts)),
                                             std::end(kLayouts)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace megascale::e2e
