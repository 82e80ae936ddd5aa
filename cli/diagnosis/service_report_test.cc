#include "cli/diagnosis/service_report.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/match.h"

namespace megascale::cli {
namespace {

control::v1::Job RunningJob() {
  control::v1::Job job;
  job.set_job_id("job");
  job.set_state(control::v1::JOB_STATE_RUNNING);
  return job;
}

control::v1::Job JobWithoutStorage() {
  control::v1::Job job = RunningJob();
  job.set_last_step(40);
  job.mutable_last_checkpoint()->set_step(35);
  job.mutable_storage_failure()->set_node_id("n2");
  job.mutable_storage_failure()->set_message("write /c/x: disk full\x1b[2J");
  job.mutable_storage_failure()->set_seconds(12);
  return job;
}

Diagnosis Healthy() {
  Diagnosis diagnosis;
  diagnosis.findings.cause = "healthy";
  diagnosis.findings.verdict = "healthy: no straggler";
  return diagnosis;
}

TEST(ServiceReportTest, AJobThatTrainsWithoutStorageHasItsMachineNamed) {
  Diagnosis diagnosis = Healthy();
  AddStorageFailure(JobWithoutStorage(), &diagnosis);
  EXPECT_EQ(diagnosis.findings.cause, "storage");
  EXPECT_EQ(diagnosis.node, "n2");
  EXPECT_EQ(diagnosis.findings.verdict,
            "storage: node n2 cannot store checkpoints; the job trains without");
  ASSERT_EQ(diagnosis.findings.evidence.size(), 2u);
  EXPECT_TRUE(
      absl::StartsWith(diagnosis.findings.evidence[0],
                       "node n2 could not store a checkpoint for 12 s: write /c/x: disk full"));
  EXPECT_FALSE(absl::StrContains(diagnosis.findings.evidence[0], '\x1b'));
  EXPECT_EQ(diagnosis.findings.evidence[1], "its steps: healthy: no straggler");
  EXPECT_TRUE(absl::StrContains(diagnosis.findings.cost.back(), "checkpoint of step 35"));
}

TEST(ServiceReportTest, AnotherVerdictStays) {
  Diagnosis diagnosis = Healthy();
  diagnosis.findings.cause = "slow_worker";
  diagnosis.rank = 3;
  diagnosis.node = "n1";
  AddStorageFailure(JobWithoutStorage(), &diagnosis);
  EXPECT_EQ(diagnosis.findings.cause, "slow_worker");
  EXPECT_EQ(diagnosis.node, "n1");
  EXPECT_EQ(diagnosis.findings.evidence.size(), 1u);
}

TEST(ServiceReportTest, StorageThatWorksIsNotMentioned) {
  control::v1::Job job = JobWithoutStorage();
  job.clear_storage_failure();
  Diagnosis diagnosis = Healthy();
  AddStorageFailure(job, &diagnosis);
  EXPECT_EQ(diagnosis.findings.cause, "healthy");
  EXPECT_TRUE(diagnosis.findings.evidence.empty());
}

control::v1::Job JobWithASilentKeeper() {
  control::v1::Job job = RunningJob();
  job.mutable_silent_keeper()->set_node_id("n1");
  job.mutable_silent_keeper()->set_seconds(7.2);
  return job;
}

TEST(ServiceReportTest, AProcessKeeperThatDoesNotAnswerHasItsMachineNamed) {
  Diagnosis diagnosis = Healthy();
  AddSilentKeeper(JobWithASilentKeeper(), &diagnosis);
  EXPECT_EQ(diagnosis.findings.cause, "silent_keeper");
  EXPECT_EQ(diagnosis.node, "n1");
  EXPECT_EQ(diagnosis.findings.verdict,
            "silent process keeper: node n1 starts and reaps no process; the job trains on");
  ASSERT_EQ(diagnosis.findings.evidence.size(), 2u);
  EXPECT_EQ(diagnosis.findings.evidence[0],
            "the process keeper of node n1 has not answered its agent for 7 s");
  EXPECT_EQ(diagnosis.findings.evidence[1], "its steps: healthy: no straggler");
}

TEST(ServiceReportTest, ASilentKeeperIsEvidenceWhereARankIsNamedOrTheJobDoesNotTrain) {
  Diagnosis slow = Healthy();
  slow.findings.cause = "slow_worker";
  slow.rank = 3;
  slow.node = "n0";
  AddSilentKeeper(JobWithASilentKeeper(), &slow);
  EXPECT_EQ(slow.findings.cause, "slow_worker");
  EXPECT_EQ(slow.node, "n0");
  EXPECT_EQ(slow.findings.evidence.size(), 1u);
  control::v1::Job starting = JobWithASilentKeeper();
  starting.set_state(control::v1::JOB_STATE_STARTING);
  Diagnosis unknown;
  unknown.findings.cause = "unknown";
  AddSilentKeeper(starting, &unknown);
  EXPECT_EQ(unknown.findings.cause, "unknown");
  EXPECT_EQ(unknown.findings.evidence.size(), 1u);
  Diagnosis healthy = Healthy();
  AddSilentKeeper(control::v1::Job(), &healthy);
  EXPECT_EQ(healthy.findings.cause, "healthy");
}

TEST(ServiceReportTest, ADriverThatDoesNotAnswerIsAVerdict) {
  EXPECT_TRUE(IsSilence(absl::UnavailableError("")));
  EXPECT_TRUE(IsSilence(absl::DeadlineExceededError("")));
  EXPECT_FALSE(IsSilence(absl::NotFoundError("job x")));
  const Diagnosis diagnosis =
      DiagnoseSilentDriver(absl::DeadlineExceededError("no answer in 5 s"), "job", "unix:/d");
  EXPECT_EQ(diagnosis.findings.cause, "silent_driver");
  EXPECT_EQ(diagnosis.findings.verdict,
            "silent driver: the driver does not answer at unix:/d, or this client cannot reach it "
            "with these certificates");
  EXPECT_EQ(diagnosis.findings.evidence[0], "no answer in 5 s");
  EXPECT_EQ(diagnosis.rank, -1);
  EXPECT_TRUE(diagnosis.node.empty());
}

// What four ranks on two machines say of 10 collectives, of which rank 2 begins some late.
std::vector<control::v1::StreamEvidenceResponse> Evidence(int64_t late_millis) {
  std::vector<control::v1::StreamEvidenceResponse> responses(4);
  for (int rank = 0; rank < 4; ++rank) {
    control::v1::StreamEvidenceResponse& response = responses[static_cast<size_t>(rank)];
    response.set_rank(rank);
    response.set_node_id(rank < 2 ? "n0" : "n1");
    response.mutable_evidence()->set_monotonic_nanos(int64_t{1} << 40);
    for (uint64_t i = 0; i < 10; ++i) {
      telemetry::v1::ExchangeState* state = response.mutable_evidence()->add_completed();
      state->set_group("tp");
      state->set_sequence(i);
      state->set_peer(-1);
      const bool is_late = rank == 2 && i % 3 == 0;
      state->set_begin_nanos((int64_t{1} << 40) - 1'000'000'000 +
                             (is_late ? late_millis * 1'000'000 : 0));
    }
  }
  return responses;
}

TEST(ServiceReportTest, ARankThatBeginsCollectivesLateIsNamedWhereSpansLeaveItOpen) {
  Diagnosis diagnosis;
  diagnosis.findings.cause = "slow_collective";
  diagnosis.findings.verdict = "slow collective: exchange within a pass";
  ASSERT_TRUE(LeavesOpenWhoIsLate(diagnosis));
  AddLateRank(Evidence(300), "job", &diagnosis);
  EXPECT_EQ(diagnosis.rank, 2);
  EXPECT_EQ(diagnosis.node, "n1");
  EXPECT_EQ(diagnosis.findings.cause, "late_rank");
  EXPECT_EQ(diagnosis.findings.evidence[0],
            "it began 4 of its 10 newest collectives later than a rank of its machine, by 300 ms "
            "on the mean");
  ASSERT_EQ(diagnosis.findings.advice.size(), 1u);
  EXPECT_TRUE(absl::StrContains(diagnosis.findings.advice[0], "`megascale logs job --rank 2`"));
  EXPECT_FALSE(LeavesOpenWhoIsLate(diagnosis));
}

TEST(ServiceReportTest, WithoutALateRankTheVerdictOfTheSpansStays) {
  Diagnosis diagnosis;
  diagnosis.findings.cause = "slow_collective";
  AddLateRank(Evidence(1), "job", &diagnosis);
  EXPECT_EQ(diagnosis.findings.cause, "slow_collective");
  EXPECT_EQ(diagnosis.rank, -1);
}

TEST(ServiceReportTest, CallsOfLongAgoDoNotCount) {
  std::vector<control::v1::StreamEvidenceResponse> responses = Evidence(300);
  for (auto& response : responses) {
    response.mutable_evidence()->set_monotonic_nanos(int64_t{1} << 41);
  }
  Diagnosis diagnosis;
  diagnosis.findings.cause = "slow_collective";
  AddLateRank(responses, "job", &diagnosis);
  EXPECT_EQ(diagnosis.rank, -1);
}

}  // namespace
}  // namespace megascale::cli
