// A machine that the network cuts off, in one direction or in both: the driver and each agent are
// in network namespaces of their own, and talk over TCP through one bridge, as do the ranks. In
// `./dev test` nothing comes from the machine, but it still hears the others; in `./dev soak` also
// the other ways.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/diagnose/machines.h"
#include "tests/e2e/cluster.h"
#include "tests/soak.h"

namespace megascale::chaos {
namespace {

using control::v1::Job;
using injection::Machines;
using injection::Way;

constexpr int kMachines = 3;  // two of them run the job, the third one replaces the lost one
constexpr int kSlots = 2;
constexpr int kCutOff = 1;
constexpr int kSeconds = 150;
constexpr char kJob[] = "job";

struct Partition {
  Way way;
  const char* name;
};

class PartitionTest : public ::testing::TestWithParam<Partition> {
 protected:
  void SetUp() override {
    if (!machines_.status().ok()) GTEST_SKIP() << machines_.status();
    cluster_.UseTls(Machines::OwnAddress());
    cluster_.SetDriverFlags({"--node-timeout", "5s"});
    cluster_.StartDriver();
    for (int i = 0; i < kMachines; ++i) {
      cluster_.RunAgentsUnder(machines_.Prefix(i));
      cluster_.StartAgent(i, kSlots);
    }
    ASSERT_TRUE(cluster_.WaitForAgents(kMachines));
  }
  // It trains until it is cancelled, so that no machine is too fast for the test.
  void Submit(const std::string& job_id) {
    cluster_.Submit(
        job_id, {"train.steps=1000000", "checkpoint.keep=1000000", "fault.restart_backoff=100ms"});
  }
  bool StepsOn(const std::string& job_id, int64_t attempt, int64_t step) {
    return e2e::WaitUntil(
        [&] {
          const Job job = cluster_.Status(job_id);
          return job.state() == control::v1::JOB_STATE_RUNNING && job.attempt() >= attempt &&
                 job.last_step() >= step;
        },
        kSeconds);
  }
  // Ends the job after a checkpoint beyond `step`, and returns its losses up to it.
  std::vector<std::string> End(const std::string& job_id, int64_t step) {
    EXPECT_TRUE(e2e::WaitUntil(
        [&] { return cluster_.Status(job_id).last_checkpoint().step() > step; }, kSeconds));
    EXPECT_EQ(cluster_.Megascale({"cancel", job_id}).exit_code, 0);
    EXPECT_EQ(cluster_.WaitForEnd(job_id), control::v1::JOB_STATE_CANCELLED);
    return cluster_.LossLog(job_id);
  }

  Machines machines_{kMachines};
  e2e::Cluster cluster_;
};

TEST_P(PartitionTest, TheJobGoesOnElsewhereAndTheMachineThatComesBackChangesNothing) {
  Submit(kJob);
  ASSERT_TRUE(StepsOn(kJob, 1, 20));
  const Job before = cluster_.Status(kJob);
  ASSERT_EQ(before.ranks(kCutOff * kSlots).node_id(), absl::StrCat("n", kCutOff));
  machines_.Block(kCutOff, GetParam().way);
  ASSERT_TRUE(machines_.status().ok()) << machines_.status();
  ASSERT_TRUE(StepsOn(kJob, 2, before.last_step() + 5)) << cluster_.Status(kJob).message();
  const Job moved = cluster_.Status(kJob);
  EXPECT_EQ(moved.culprit().node_id(), absl::StrCat("n", kCutOff));
  EXPECT_EQ(moved.culprit().failure_class(), telemetry::v1::FAILURE_CLASS_UNREACHABLE);
  for (const auto& rank : moved.ranks()) {
    EXPECT_NE(rank.node_id(), absl::StrCat("n", kCutOff));
  }
  machines_.Unblock(kCutOff);
  // Its agent is taken again, and has ended its processes of the first attempt.
  const auto is_back = [&] {
    return e2e::DescendantsOf(cluster_.agent_pid(kCutOff), "--link-fd").empty();
  };
  EXPECT_TRUE(e2e::WaitUntil(is_back, kSeconds));
  ASSERT_TRUE(StepsOn(kJob, 2, moved.last_step() + 5));
  EXPECT_EQ(cluster_.Status(kJob).attempt(), moved.attempt()) << "it came back and took nothing";
  const std::vector<std::string> losses = End(kJob, moved.last_step());
  Submit("calm");
  const std::vector<std::string> calm = End("calm", static_cast<int64_t>(losses.size()));
  ASSERT_GE(calm.size(), losses.size());
  for (size_t i = 0; i < losses.size(); ++i) ASSERT_EQ(losses[i], calm[i]);
}

// Shorter than the driver's patience: nobody is given up.
TEST_P(PartitionTest, AShortOneCostsNoAttempt) {
  Submit(kJob);
  ASSERT_TRUE(StepsOn(kJob, 1, 20));
  machines_.Block(kCutOff, GetParam().way);
  EXPECT_FALSE(e2e::WaitUntil([&] { return cluster_.Status(kJob).attempt() > 1; }, 2));
  machines_.Unblock(kCutOff);
  ASSERT_TRUE(StepsOn(kJob, 1, cluster_.Status(kJob).last_step() + 10));
  EXPECT_EQ(cluster_.Status(kJob).attempt(), 1) << cluster_.Status(kJob).message();
}

// Rank 0 on n0, rank 1 on n1, ranks 2 and 3 on n2; n3 is free. Packets between n0 and n1 are lost,
// one way or both, and all machines reach the driver.
class LinkTest : public ::testing::TestWithParam<Partition> {
 protected:
  void SetUp() override {
    if (!machines_.status().ok()) GTEST_SKIP() << machines_.status();
    cluster_.UseTls(Machines::OwnAddress());
    cluster_.StartDriver();
    for (const auto& [machine, slots] : {std::pair(0, 1), {1, 1}, {2, 2}, {3, 1}}) {
      cluster_.RunAgentsUnder(machines_.Prefix(machine));
      cluster_.StartAgent(machine, slots);
    }
    ASSERT_TRUE(cluster_.WaitForAgents(4));
  }

  Machines machines_{4};
  e2e::Cluster cluster_;
};

TEST_P(LinkTest, TheJobEndsBesideALinkThatSwallowsPacketsAndItsTwoEndsAreNamed) {
  if (GetParam().way != Way::kTo) machines_.Swallow(0, 1);
  if (GetParam().way != Way::kFrom) machines_.Swallow(1, 0);
  ASSERT_TRUE(machines_.status().ok()) << machines_.status();
  cluster_.Submit(kJob, {"fault.progress_timeout=8s", "fault.start_timeout=20s",
                         "fault.restart_backoff=100ms", "fault.max_restarts_without_progress=1"});
  Job job;
  ASSERT_TRUE(e2e::WaitUntil(
      [&] {
        job = cluster_.Status(kJob);
        return job.has_culprit();
      },
      kSeconds));
  EXPECT_EQ(cluster_.WaitForEnd(kJob), control::v1::JOB_STATE_SUCCEEDED);
  job = cluster_.Status(kJob);
  EXPECT_EQ(job.attempt(), 2) << job.ShortDebugString();
  EXPECT_EQ(job.culprit().failure_class(), telemetry::v1::FAILURE_CLASS_LINK);
  EXPECT_EQ(job.culprit().rank(), 0);
  EXPECT_EQ(job.culprit().node_id(), "n0");
  EXPECT_EQ(job.culprit().peer_rank(), 1);
  EXPECT_EQ(job.culprit().peer_node_id(), "n1");
  const std::string status = cluster_.Megascale({"status", kJob}).out;
  EXPECT_NE(status.find("rank 0 on n0 got no answer from rank 1 on n1, though both machines reach "
                        "the driver"),
            std::string::npos)
      << status;
  std::set<std::string> nodes;
  for (const auto& rank : job.ranks()) nodes.insert(rank.node_id());
  EXPECT_EQ(nodes, (std::set<std::string>{"n0", "n2", "n3"}));
  const std::string all = cluster_.Megascale({"nodes"}).out;
  EXPECT_EQ(all.find("quarantine"), std::string::npos) << all;
}

INSTANTIATE_TEST_SUITE_P(Ways, LinkTest,
                         ::testing::Values(Partition{Way::kFrom, "OneWay"},
                                           Partition{Way::kTo, "TheOtherWay"},
                                           Partition{Way::kBoth, "BothWays"}),
                         [](const auto& info) { return info.param.name; });

TEST(MachinesTest, WhatATestLeavesBehindEndsWithItsMachines) {
  for (int i = 0; i < 2; ++i) {
    Machines machines(1);
    if (i == 0 && !machines.status().ok()) GTEST_SKIP() << machines.status();
    ASSERT_TRUE(machines.status().ok()) << machines.status();
    std::vector<std::string> command = machines.Prefix(0);
    command.insert(command.end(), {"/bin/sh", "-c", "setsid sleep 1000 & echo $!"});
    const e2e::CommandResult left = e2e::Run(command);
    ASSERT_EQ(left.exit_code, 0) << left.err;
  }
}

std::vector<Partition> Partitions() {
  std::vector<Partition> partitions = {{Way::kFrom, "NothingComesFromIt"}};
  if (IsSoak()) partitions.push_back({Way::kTo, "NothingComesToIt"});
  if (IsSoak()) partitions.push_back({Way::kBoth, "BothWays"});
  return partitions;
}

INSTANTIATE_TEST_SUITE_P(Ways, PartitionTest, ::testing::ValuesIn(Partitions()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace megascale::chaos
