// A worker stops, and no timeout of its job is near: the driver finds who stopped from what the
// ranks recorded, leaves the machine, and the job goes on elsewhere.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;

constexpr int64_t kMiddle = 20;
constexpr int kDeadlineSeconds = 90;

TEST(SuspectTest, TheMachineOfARankThatStopsIsEvictedAndTheJobEnds) {
  Cluster cluster;
  cluster.StartDriver();
  for (const int agent : {0, 1, 2}) cluster.StartAgent(agent, 2);
  cluster.Submit("job", {"fault.on_suspect=evict", "fault.heartbeat_timeout=600s",
                         "fault.progress_timeout=600s", "fault.restart_backoff=100ms"});
  ASSERT_TRUE(cluster.WaitForStep("job", kMiddle));
  const Job before = cluster.Status("job");
  ASSERT_EQ(before.ranks_size(), 4);
  const std::string node = before.ranks(2).node_id();
  ASSERT_EQ(::kill(before.ranks(2).status().pid(), SIGSTOP), 0);
  Job after;
  ASSERT_TRUE(WaitUntil(
      [&] {
        after = cluster.Status("job");
        return after.attempt() > before.attempt() && after.has_culprit();
      },
      kDeadlineSeconds))
      << "no suspect was found: " << after.ShortDebugString();
  EXPECT_EQ(after.culprit().rank(), 2);
  EXPECT_EQ(after.culprit().node_id(), node);
  EXPECT_NE(after.culprit().evidence().find(absl::StrCat("rank 2 on ", node, " ")),
            std::string::npos)
      << after.culprit().evidence();
  EXPECT_EQ(cluster.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  const Job ended = cluster.Status("job");
  EXPECT_EQ(ended.attempt(), before.attempt() + 1) << "no other machine was blamed";
  for (const control::v1::RankView& rank : after.ranks()) EXPECT_NE(rank.node_id(), node);
  // Its agents kept its last steps, and the driver wrote them into the job's folder.
  CommandResult shown;
  EXPECT_TRUE(WaitUntil(
      [&] {
        shown = cluster.Megascale({"diagnose", "job"});
        return shown.out.find("; its last steps: ") != std::string::npos;
      },
      kDeadlineSeconds))
      << shown.out << shown.err;
  EXPECT_EQ(shown.out.find("ended: "), 0u) << shown.out;
  const std::string nodes = cluster.Megascale({"nodes"}).out;
  EXPECT_NE(nodes.find("suspected by job job: rank 2 on " + node), std::string::npos) << nodes;
}

// The processes are gone, and their agents keep what they did last: the driver writes it into the
// job's folder.
TEST(LastEvidenceTest, AJobThatFailedIsDiagnosedWithTheInstructionOfTheRank) {
  Cluster cluster;
  cluster.StartDriver();
  for (const int agent : {0, 1}) cluster.StartAgent(agent, 2);
  // There is no checkpoint, so every attempt begins with initial weights; none comes to its end.
  cluster.Submit("job", {"train.steps=100000", "checkpoint.interval=1000000",
                         "fault.max_restarts_without_progress=1", "fault.restart_backoff=100ms"});
  for (int64_t attempt = 1; attempt <= 3; ++attempt) {
    Job job;
    ASSERT_TRUE(WaitUntil(
        [&] {
          job = cluster.Status("job");
          return job.attempt() == attempt && job.last_step() >= (attempt == 1 ? kMiddle : 3) &&
                 job.ranks_size() == 4;
        },
        kDeadlineSeconds));
    ASSERT_EQ(::kill(job.ranks(1).status().pid(), SIGKILL), 0);
  }
  ASSERT_EQ(cluster.WaitForEnd("job"), control::v1::JOB_STATE_FAILED);
  const std::string file = cluster.state_directory() + "/jobs/job/last-evidence.gz";
  ASSERT_TRUE(WaitUntil([&] { return ::access(file.c_str(), R_OK) == 0; }, kDeadlineSeconds));
  CommandResult shown;
  ASSERT_TRUE(WaitUntil(
      [&] {
        shown = cluster.Megascale({"diagnose", "job", "-o", "json"});
        return shown.out.find("\"instruction\": ") != std::string::npos;
      },
      kDeadlineSeconds))
      << shown.out << shown.err;
  for (const char* part : {"\"cause\": \"failed_rank\"", "\"rank\": 1", "rank 1 stood in ",
                           "when the attempt ended", "\"waiting\": ["}) {
    EXPECT_NE(shown.out.find(part), std::string::npos) << part << " is not in: " << shown.out;
  }
  const CommandResult saved = cluster.Megascale({"diagnose", "--saved", file, "-o", "json"});
  EXPECT_EQ(saved.exit_code, 0) << saved.err;
  EXPECT_NE(saved.out.find("rank 1 stood in "), std::string::npos) << saved.out;
}

}  // namespace
}  // namespace megascale::e2e
