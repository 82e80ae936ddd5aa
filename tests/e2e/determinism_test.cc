// The same job gives the same bits wherever it runs and whatever runs beside it: on all cores or on
// one, alone or beside foreign load or another job, with one agent or with two.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <vector>

#include "tests/e2e/cluster.h"
#include "tests/soak.h"

namespace megascale::e2e {
namespace {

// Pins this process, and all processes that it starts meanwhile, to the first core that it may use.
class OnOneCore {
 public:
  OnOneCore() {
    EXPECT_EQ(::sched_getaffinity(0, sizeof(before_), &before_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (!CPU_ISSET(core, &before_)) continue;
      CPU_SET(core, &one);
      break;
    }
    EXPECT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  }
  ~OnOneCore() { EXPECT_EQ(::sched_setaffinity(0, sizeof(before_), &before_), 0); }

 private:
  cpu_set_t before_;
};

// A child that computes all the time.
class ForeignLoad {
 public:
  ForeignLoad() : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (std::atomic<uint64_t> count = 0;;) ++count;
  }
  ~ForeignLoad() { KillAndReap(pid_); }

 private:
  const pid_t pid_;
};

using control::v1::Job;

struct Ended {
  std::string digest;
  std::vector<std::string> losses;
  bool operator==(const Ended&) const = default;
};

Ended Train(int num_agents, std::vector<std::string> fields) {
  Cluster cluster;
  cluster.StartDriver();
  for (int i = 0; i < num_agents; ++i) cluster.StartAgent(i, 4 / num_agents);
  fields.push_back("train.steps=25");
  cluster.Submit("job", fields);
  EXPECT_EQ(cluster.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  Ended ended = {cluster.Digest("job"), cluster.LossLog("job")};
  EXPECT_EQ(ended.losses.size(), 25u);
  EXPECT_FALSE(ended.digest.empty());
  EXPECT_EQ(cluster.Status("job").attempt(), 1) << "it was disturbed by more than load";
  return ended;
}

// Trains with four ranks of two threads each, so that there are more threads than cores.
Ended Train(int num_agents, const std::string& precision) {
  return Train(num_agents, {"parallel.threads_per_rank=2", "train.precision=" + precision});
}

class DeterminismTest : public ::testing::TestWithParam<std::string> {};

TEST_P(DeterminismTest, OneCoreUnderLoadAndAllCoresWithOneOrTwoAgentsGiveTheSameBits) {
  const Ended calm = Train(2, GetParam());
  EXPECT_EQ(Train(1, GetParam()), calm);
  for (const int num_agents : {1, 2}) {
    const OnOneCore one_core;
    const ForeignLoad load;
    const Ended disturbed = Train(num_agents, GetParam());
    EXPECT_EQ(disturbed.digest, calm.digest);
    EXPECT_EQ(disturbed.losses, calm.losses);
  }
}

// In fp32 only under `./dev soak`: its sums go the same ways.
INSTANTIATE_TEST_SUITE_P(Precisions, DeterminismTest,
                         ::testing::ValuesIn(IsSoak() ? std::vector<std::string>{"bf16", "fp32"}
                                                      : std::vector<std::string>{"bf16"}),
                         [](const auto& info) { return info.param; });

// With two agents, the ranks that share a layer are consecutive and on the same agent.
TEST(TensorParallelismTest, OneAgentAndTwoGiveTheSameBits) {
  const std::vector<std::string> tensor = {"parallel.data_parallel_size=1",
                                           "parallel.tensor_model_parallel_size=2"};
  EXPECT_EQ(Train(1, tensor), Train(2, tensor));
}

TEST(TwoJobsTest, AtOnceOnOneClusterEachGivesTheBitsThatItGivesAlone) {
  Cluster cluster;
  cluster.StartDriver();
  for (int i = 0; i < 2; ++i) cluster.StartAgent(i, 3);
  const auto end_of = [&](const std::string& id) {
    EXPECT_EQ(cluster.WaitForEnd(id), control::v1::JOB_STATE_SUCCEEDED);
    EXPECT_EQ(cluster.Status(id).attempt(), 1);
    return Ended{cluster.Digest(id), cluster.LossLog(id)};
  };
  const std::vector<std::string> four_ranks = {"train.seed=4", "train.steps=100"};
  const std::vector<std::string> two_ranks = {"train.seed=5", "train.steps=100",
                                              "parallel.data_parallel_size=1"};
  cluster.Submit("four-alone", four_ranks);
  const Ended four = end_of("four-alone");
  cluster.Submit("two-alone", two_ranks);
  const Ended two = end_of("two-alone");
  EXPECT_NE(four.digest, two.digest);

  cluster.Submit("four", four_ranks);
  cluster.Submit("two", two_ranks);
  const auto is_in_the_middle = [&](const std::string& id) {
    const Job job = cluster.Status(id);
    return job.state() == control::v1::JOB_STATE_RUNNING && job.last_step() > 0;
  };
  EXPECT_TRUE(WaitUntil([&] { return is_in_the_middle("four") && is_in_the_middle("two"); }, 60))
      << "they never trained at once";
  EXPECT_EQ(end_of("four"), four);
  EXPECT_EQ(end_of("two"), two);
}

}  // namespace
}  // namespace megascale::e2e
