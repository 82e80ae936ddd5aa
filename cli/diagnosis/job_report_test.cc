#include "cli/diagnosis/job_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/diagnosis/diagnose_job.h"
#include "cli/diagnosis/evidence_source.h"
#include "cli/diagnosis/first_error.h"
#include "controlplane/trace/job_spans.h"
#include "runtime/base/status.h"
#include "runtime/job/job_spec.h"

namespace megascale::cli {
namespace {

using control::v1::Job;

Job RankThreeFailed(control::v1::JobState state) {
  Job job;
  job.set_job_id("demo");
  job.set_state(state);
  job.mutable_culprit()->set_rank(3);
  job.mutable_culprit()->set_node_id("b");
  job.mutable_culprit()->set_attempt(1);
  return job;
}

TEST(JobReportTest, WhatTheFailedRankDidLastIsALineOfItsOwn) {
  Job job = RankThreeFailed(control::v1::JOB_STATE_RECOVERING);
  job.mutable_culprit()->set_evidence("killed by signal 9 (Killed)\nin R.c0 of step 1");
  job.set_restarts(1);
  const Diagnosis diagnosis = DiagnoseState(job, "");
  EXPECT_THAT(diagnosis.findings.evidence,
              testing::ElementsAre("killed by signal 9 (Killed)", "in R.c0 of step 1"));
  EXPECT_THAT(diagnosis.findings.done,
              testing::ElementsAre(testing::StartsWith("1 restart; the job is ")));
}

TEST(JobReportTest, InItsFirstMinuteAJobIsNotCalledUnknown) {
  Job job;
  job.set_state(control::v1::JOB_STATE_STARTING);
  job.set_message("4 ranks start");
  EXPECT_EQ(DiagnoseState(job, "").findings.verdict,
            "the job does not train now: it is STARTING: 4 ranks start");
  job.set_state(control::v1::JOB_STATE_RUNNING);
  EXPECT_EQ(DiagnoseState(job, "").findings.verdict,
            "too early to say what limits the job: no step has completed yet");
  job.set_submitted_age_seconds(100);  // it waited for slots
  job.mutable_submitted_at()->set_seconds(1000);
  job.mutable_started_at()->set_seconds(1041);
  EXPECT_EQ(DiagnoseState(job, "").findings.verdict,
            "too early to say what limits the job: its first step was completed 59s ago");
  job.set_submitted_age_seconds(101);
  EXPECT_EQ(DiagnoseState(job, "").findings.verdict,
            "I do not know yet what limits the job: it is RUNNING: 4 ranks start");
}

TEST(JobReportTest, OnlyAJobThatFailedOrRecoversNamesItsCulprit) {
  for (const auto state : {control::v1::JOB_STATE_FAILED, control::v1::JOB_STATE_RECOVERING}) {
    const Diagnosis diagnosis = DiagnoseState(RankThreeFailed(state), "");
    EXPECT_EQ(diagnosis.findings.verdict, "failed: rank 3, node b, in attempt 1");
    EXPECT_EQ(diagnosis.rank, 3);
  }
  for (const auto state : {control::v1::JOB_STATE_CANCELLED, control::v1::JOB_STATE_CANCELLING,
                           control::v1::JOB_STATE_SUCCEEDED}) {
    const Diagnosis diagnosis = DiagnoseState(RankThreeFailed(state), "");
    EXPECT_NE(diagnosis.findings.cause, "failed_rank") << state;
    EXPECT_EQ(diagnosis.rank, -1) << state;
  }
}

// Its machines may be gone: the driver kept what they said and how their tests went.
TEST(JobReportTest, AnEndedJobIsDiagnosedWithItsEvidence) {
  Job job = RankThreeFailed(control::v1::JOB_STATE_FAILED);
  for (const int rank : {2, 3}) {
    telemetry::v1::RankStatus* status = job.mutable_evidence()->add_ranks()->mutable_status();
    status->set_rank(rank);
    status->set_doing("computes B.c1.m0");
  }
  control::v1::NodeEvidence* tested = job.mutable_evidence()->add_nodes();
  tested->set_node_id("a");
  tested->mutable_machine_test()->set_state(agent::v1::MachineTest::STATE_PASSED);
  tested->mutable_machine_tested_at()->set_seconds(1001);
  job.mutable_evidence()->mutable_ended_at()->set_seconds(1000);
  control::v1::NodeEvidence* at_fault = job.mutable_evidence()->add_nodes();
  at_fault->set_node_id("b");
  at_fault->set_quarantine_evidence("machine test: memory: 1 byte of 64 MiB read back wrong");
  const Findings findings = DiagnoseState(job, "").findings;
  EXPECT_THAT(
      findings.evidence,
      testing::IsSupersetOf(
          {"rank 3 reported before it: computes B.c1.m0",
           "node b is quarantined: machine test: memory: 1 byte of 64 MiB read back wrong"}));
  EXPECT_THAT(findings.excluded, testing::Contains("node a: its machine test passed"));
  tested->mutable_machine_tested_at()->set_seconds(999);
  EXPECT_THAT(DiagnoseState(job, "").findings.excluded, testing::IsEmpty())
      << "a test before the failure tells nothing about it";
}

TEST(JobReportTest, AFirstStepMayTakeHalfOfTheProgressTimeout) {
  job::v1::FaultSpec fault;
  fault.mutable_progress_timeout()->set_seconds(60);
  EXPECT_DOUBLE_EQ(StallLimitSeconds(fault, 0), 30);
  EXPECT_DOUBLE_EQ(StallLimitSeconds(fault, 4), 8);
  EXPECT_DOUBLE_EQ(StallLimitSeconds(fault, 0.01), 1);
  fault.mutable_progress_timeout()->set_seconds(5);
  EXPECT_DOUBLE_EQ(StallLimitSeconds(fault, 0), 10);
}

Job FourRanks() {
  Job job;
  for (int rank = 0; rank < 4; ++rank) {
    job.add_ranks()->mutable_status()->set_phase(telemetry::v1::PHASE_TRAINING);
  }
  return job;
}

Diagnosis Undecided() {
  Diagnosis diagnosis;
  diagnosis.is_undecided = true;
  diagnosis.findings.cause = "unknown";
  diagnosis.findings.excluded = {"not excluded: rank 1"};
  return diagnosis;
}

TEST(JobReportTest, RanksThatAllWaitForStorageAreOneCause) {
  Job job = FourRanks();
  for (auto& rank : *job.mutable_ranks()) {
    rank.mutable_status()->set_activity(telemetry::v1::ACTIVITY_WAIT_FOR_STORAGE);
  }
  Diagnosis diagnosis = Undecided();
  AddReport(job, {}, &diagnosis);
  EXPECT_EQ(diagnosis.findings.cause, "storage");
  EXPECT_EQ(diagnosis.findings.verdict, "stuck: all 4 ranks wait for checkpoint storage");
  EXPECT_FALSE(diagnosis.is_undecided);
  EXPECT_TRUE(diagnosis.findings.excluded.empty());
}

TEST(JobReportTest, RanksThatCopyACheckpointAreNotStuck) {
  Job job = FourRanks();
  for (const int rank : {1, 2}) {
    job.mutable_ranks(rank)->mutable_status()->set_phase(telemetry::v1::PHASE_CHECKPOINT);
  }
  Diagnosis diagnosis = Undecided();
  AddReport(job, {0, 3}, &diagnosis);
  EXPECT_EQ(diagnosis.findings.cause, "checkpoint");
  EXPECT_EQ(diagnosis.findings.verdict,
            "saving a checkpoint: 2 of 4 ranks copy it; the next step begins after it");
  diagnosis = Undecided();
  AddReport(job, {0}, &diagnosis);  // rank 3 may be the cause, and saves nothing
  EXPECT_EQ(diagnosis.findings.cause, "unknown");
  EXPECT_TRUE(diagnosis.is_undecided);
}

TEST(JobReportTest, ARankThatIsNamedSaysWhatItDoes) {
  Job job = FourRanks();
  job.mutable_ranks(2)->mutable_status()->set_doing("waiting for checkpoint storage");
  job.mutable_ranks(2)->mutable_status()->set_activity(telemetry::v1::ACTIVITY_WAIT_FOR_STORAGE);
  Diagnosis diagnosis;
  diagnosis.rank = 2;
  diagnosis.node = "b";
  AddReport(job, {}, &diagnosis);
  EXPECT_EQ(diagnosis.findings.verdict, "stuck: rank 2 on node b waits for checkpoint storage");
  EXPECT_EQ(diagnosis.findings.evidence.size(), 1u);
  job.mutable_ranks(2)->mutable_status()->set_activity(telemetry::v1::ACTIVITY_UNSPECIFIED);
  job.mutable_ranks(2)->mutable_status()->set_phase(telemetry::v1::PHASE_CHECKPOINT);
  AddReport(job, {}, &diagnosis);
  EXPECT_EQ(diagnosis.findings.cause, "checkpoint");
  diagnosis.findings = {};
  job.mutable_ranks(2)->mutable_status()->set_alive_age_seconds(3);  // its process is stopped
  AddReport(job, {}, &diagnosis);
  EXPECT_EQ(diagnosis.findings.cause, "");
}

TEST(JobReportTest, ANumberOffTheRoadIsTheVerdictOnlyOfAJobThatIsHealthyOtherwise) {
  Job job = FourRanks();
  const auto add = [&](control::v1::NumberWarning::Kind kind, const std::string& message) {
    control::v1::NumberWarning* warning = job.add_number_warnings();
    warning->set_kind(kind);
    warning->set_message(message);
  };
  add(control::v1::NumberWarning::KIND_LOSS_JUMP, "loss 11 in step 91\n is 5 times the usual");
  add(control::v1::NumberWarning::KIND_SLOWER, "MFU has declined since step 129");
  Diagnosis healthy;
  healthy.findings.cause = "healthy";
  AddNumbers(job, &healthy);
  EXPECT_EQ(healthy.findings.cause, "loss_jump");
  EXPECT_EQ(healthy.findings.verdict.find("numbers: loss 11 in step 91"), 0u);
  EXPECT_EQ(healthy.findings.verdict.find('\n'), std::string::npos);
  EXPECT_THAT(healthy.findings.evidence, testing::ElementsAre("MFU has declined since step 129"));
  EXPECT_THAT(healthy.findings.done, testing::IsEmpty());
  Diagnosis slow;
  slow.findings.cause = "slow_worker";
  slow.findings.verdict = "slow worker: rank 1";
  AddNumbers(job, &slow);
  EXPECT_EQ(slow.findings.verdict, "slow worker: rank 1");
  EXPECT_EQ(slow.findings.evidence.size(), 2u);
}

TEST(JobReportTest, EachKindOfNumberHasItsWord) {
  using control::v1::NumberWarning;
  const std::vector<std::pair<NumberWarning::Kind, std::string>> words = {
      {NumberWarning::KIND_LOSS_JUMP, "loss_jump"},
      {NumberWarning::KIND_GRADIENT_JUMP, "gradient_jump"},
      {NumberWarning::KIND_NOT_FINITE, "not_finite"},
      {NumberWarning::KIND_SLOWER, "mfu_decline"}};
  for (const auto& [kind, word] : words) {
    Job job;
    job.add_number_warnings()->set_kind(kind);
    Diagnosis diagnosis;
    diagnosis.findings.cause = "healthy";
    AddNumbers(job, &diagnosis);
    EXPECT_EQ(diagnosis.findings.cause, word);
  }
}

TEST(JobReportTest, WhatTheDriverDidAboutASuspectIsSaid) {
  Job job = FourRanks();
  job.mutable_suspicion()->set_verdict("rank 2 on b does not begin F.c0.m1");
  job.mutable_suspicion()->set_action("evicted node b");
  Diagnosis diagnosis = Undecided();
  AddNumbers(job, &diagnosis);
  EXPECT_THAT(diagnosis.findings.done,
              testing::ElementsAre(
                  "the driver suspects: rank 2 on b does not begin F.c0.m1 (evicted node b)"));
  EXPECT_EQ(diagnosis.findings.cause, "unknown");
}

// Two ranks on each of two machines.
Job OnTwoMachines() {
  Job job;
  job.set_job_id("demo");
  for (const char* node : {"a", "a", "b", "b"}) job.add_ranks()->set_node_id(node);
  return job;
}

TEST(SilenceTest, AMachineThatNeitherAnswersNorReportsIsNamed) {
  const Job job = OnTwoMachines();
  control::v1::GetClusterResponse cluster;
  for (const char* node : {"a", "b", "unused"}) {
    cluster.add_nodes()->set_node_id(node);
    cluster.mutable_nodes(cluster.nodes_size() - 1)->set_heartbeat_age_seconds(0.5);
  }
  const std::vector<bool> known = {true, true, false, false};
  EXPECT_FALSE(DiagnoseSilence(job, cluster, known).has_value()) << "it reports";
  cluster.mutable_nodes(2)->set_heartbeat_age_seconds(9);
  EXPECT_FALSE(DiagnoseSilence(job, cluster, known).has_value()) << "no rank of the job is there";
  cluster.mutable_nodes(1)->set_heartbeat_age_seconds(3);
  const std::optional<Diagnosis> silence = DiagnoseSilence(job, cluster, known);
  ASSERT_TRUE(silence.has_value());
  EXPECT_EQ(silence->node, "b");
  EXPECT_EQ(silence->rank, -1);
  EXPECT_EQ(silence->findings.cause, "silent_machine");
  EXPECT_FALSE(DiagnoseSilence(job, cluster, {true, true, true, false}).has_value());
  cluster.mutable_nodes(0)->set_heartbeat_age_seconds(3);
  EXPECT_FALSE(DiagnoseSilence(job, cluster, {false, false, false, false}).has_value())
      << "both are silent: it may be the driver's own network";
}

// Has four ranks.
job::v1::JobSpec SmallSpec() {
  job::v1::JobSpec spec;
  spec.set_name("small");
  spec.mutable_model()->set_hidden_size(32);
  spec.mutable_model()->set_num_hidden_layers(2);
  spec.mutable_model()->set_num_attention_heads(2);
  spec.mutable_data()->add_files("/unused");
  spec.mutable_train()->set_steps(10);
  spec.mutable_train()->set_seq_length(16);
  spec.mutable_train()->set_global_batch_size(2);
  spec.mutable_train()->set_micro_batch_size(1);
  spec.mutable_parallel()->set_data_parallel_size(2);
  spec.mutable_parallel()->set_pipeline_model_parallel_size(2);
  return job::ResolveJobSpec(spec).value();
}

class OneJob : public EvidenceSource {
 public:
  absl::StatusOr<control::v1::Job> Job() override {
    control::v1::Job job = OnTwoMachines();
    job.set_job_id("demo");
    *job.mutable_spec() = SmallSpec();
    job.set_last_step(7);
    return job;
  }
  control::v1::GetClusterResponse Cluster() override {
    control::v1::GetClusterResponse cluster;
    cluster.add_nodes()->set_node_id("a");
    return cluster;
  }
  absl::Status Spans(
      int64_t first_step,
      const std::function<void(const control::v1::StreamSpansResponse&)>& add) override {
    control::v1::StreamSpansResponse response;
    for (int64_t step = first_step; step <= 7; ++step) response.add_spans()->set_step(step);
    add(response);
    return absl::OkStatus();
  }
  std::vector<control::v1::StreamEvidenceResponse> Evidence(
      telemetry::v1::EvidenceKind kind, absl::Span<const int> /*ranks*/) override {
    std::vector<control::v1::StreamEvidenceResponse> responses(2);
    responses[0].set_rank(0);
    responses[1].set_rank(3);
    responses[1].mutable_evidence()->set_monotonic_nanos(kind);
    return responses;
  }
  std::string FirstErrorOf(int rank, int64_t attempt) override {
    return rank == 3 && attempt == 1 ? "E worker 3: storage: no space left" : "";
  }
  bool Wait(absl::Duration /*duration*/) override { return false; }
};

// All ranks of the job are on one machine, whose agent is stopped.
class OneMachineStopped final : public OneJob {
 public:
  absl::StatusOr<control::v1::Job> Job() override {
    ASSIGN_OR_RETURN(control::v1::Job job, OneJob::Job());
    job.set_state(state);
    for (auto& rank : *job.mutable_ranks()) rank.set_node_id("a");
    return job;
  }
  control::v1::GetClusterResponse Cluster() override {
    control::v1::GetClusterResponse cluster = OneJob::Cluster();
    cluster.mutable_nodes(0)->set_heartbeat_age_seconds(silent_seconds);
    return cluster;
  }
  bool Wait(absl::Duration duration) override {
    silent_seconds += absl::ToDoubleSeconds(duration);
    if (reports_again) silent_seconds = 0.3;
    return true;
  }
  absl::Status Spans(
      int64_t /*first_step*/,
      const std::function<void(const control::v1::StreamSpansResponse&)>& add) override {
    for (int rank = 0; rank < 4; ++rank) {
      control::v1::StreamSpansResponse response;
      response.set_rank(rank);
      response.set_error("node a did not answer within 2 s");
      add(response);
    }
    return absl::OkStatus();
  }

  control::v1::JobState state = control::v1::JOB_STATE_RUNNING;
  double silent_seconds = 4;
  bool reports_again = false;
};

TEST(SilenceTest, TheOnlyMachineOfAJobIsNamedToo) {
  OneMachineStopped source;
  absl::StatusOr<Diagnosis> diagnosis = DiagnoseJob(&source, {});
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_EQ(diagnosis->findings.cause, "silent_machine");
  EXPECT_EQ(diagnosis->node, "a");
  source.state = control::v1::JOB_STATE_PENDING;
  diagnosis = DiagnoseJob(&source, {});
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_EQ(diagnosis->findings.cause, "unknown") << "no rank runs there";
}

// Its agent stopped just after it reported, and its spans were waited for in vain for two seconds.
TEST(SilenceTest, AnOverdueReportIsWaitedFor) {
  OneMachineStopped source;
  source.silent_seconds = 2.1;
  absl::StatusOr<Diagnosis> diagnosis = DiagnoseJob(&source, {});
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_EQ(diagnosis->findings.cause, "silent_machine");
  EXPECT_LT(source.silent_seconds, 3.3) << "it is known as soon as it is silent";
  source.silent_seconds = 2.1;
  source.reports_again = true;
  diagnosis = DiagnoseJob(&source, {});
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_NE(diagnosis->findings.cause, "silent_machine");
  source.silent_seconds = 0.8;
  diagnosis = DiagnoseJob(&source, {});
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_NE(diagnosis->findings.cause, "silent_machine") << "it reports";
  source.silent_seconds = 2.1;
  source.reports_again = false;
  diagnosis = DiagnoseJob(&source, {.is_brief = true});
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_EQ(source.silent_seconds, 2.1) << "status does not wait";
}

TEST(SilenceTest, IsWaitedForOnlyWhereOneMachineMayBeNamed) {
  const Job job = OnTwoMachines();
  control::v1::GetClusterResponse cluster;
  const auto are = [&](double a, double b) {
    cluster.clear_nodes();
    for (const auto& [node, age] : {std::pair("a", a), std::pair("b", b)}) {
      cluster.add_nodes()->set_node_id(node);
      cluster.mutable_nodes(cluster.nodes_size() - 1)->set_heartbeat_age_seconds(age);
    }
    return MaySoonBeSilent(job, cluster, {false, false, false, false});
  };
  EXPECT_FALSE(are(0.9, 0.9));
  EXPECT_TRUE(are(0.9, 2.0));
  EXPECT_TRUE(are(2.6, 2.0)) << "both may be silent, and then none is named";
  EXPECT_FALSE(are(2.6, 0.9)) << "it is known";
  EXPECT_FALSE(are(2.6, 2.6));
}

TEST(SavedEvidenceTest, IsWrittenIntoPipesAndReplacesFilesWhole) {
  OneJob live;
  const std::string pipe = ::testing::TempDir() + "/pipe";
  ::unlink(pipe.c_str());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] {
    std::ifstream file(pipe);
    read.assign(std::istreambuf_iterator<char>(file), {});
  });
  const absl::Status saved = SaveEvidence(&live, {.num_steps = 5}, pipe);
  reader.join();
  ASSERT_TRUE(saved.ok()) << saved;
  struct stat info = {};
  ASSERT_EQ(::stat(pipe.c_str(), &info), 0);
  EXPECT_TRUE(S_ISFIFO(info.st_mode));
  const std::string copy = ::testing::TempDir() + "/copy.gz";
  std::ofstream(copy) << read;
  EXPECT_TRUE(SavedEvidence(copy).ok());
  EXPECT_EQ(SaveEvidence(&live, {.num_steps = 5}, "/dev/full").code(),
            absl::StatusCode::kResourceExhausted);
  const std::string missing = ::testing::TempDir() + "/missing/evidence.gz";
  EXPECT_FALSE(SaveEvidence(&live, {.num_steps = 5}, missing).ok());
}

TEST(SavedEvidenceTest, GivesTheSameAnswers) {
  const std::string path = ::testing::TempDir() + "/evidence.gz";
  OneJob live;
  ASSERT_TRUE(SaveEvidence(&live, {.num_steps = 5}, path).ok());
  const auto saved = SavedEvidence(path);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ((*saved)->Job()->SerializeAsString(), live.Job()->SerializeAsString());
  EXPECT_EQ((*saved)->Cluster().SerializeAsString(), live.Cluster().SerializeAsString());
  int num_spans = 0;
  const auto count = [&](const auto& response) { num_spans += response.spans_size(); };
  ASSERT_TRUE((*saved)->Spans(0, count).ok());
  EXPECT_EQ(num_spans, 5);
  ASSERT_TRUE((*saved)->Spans(6, count).ok());
  EXPECT_EQ(num_spans, 5 + 2);
  const auto metrics = (*saved)->Evidence(telemetry::v1::EVIDENCE_KIND_METRICS, {3});
  ASSERT_EQ(metrics.size(), 1u);
  EXPECT_EQ(metrics[0].evidence().monotonic_nanos(), telemetry::v1::EVIDENCE_KIND_METRICS);
  EXPECT_TRUE((*saved)->Evidence(telemetry::v1::EVIDENCE_KIND_STACKS, {}).empty());
}

// Rank 3 failed in attempt 1, and the job in attempt 2.
class FailedJob : public OneJob {
 public:
  absl::StatusOr<control::v1::Job> Job() override {
    ASSIGN_OR_RETURN(control::v1::Job job, OneJob::Job());
    *job.mutable_culprit() = RankThreeFailed(control::v1::JOB_STATE_FAILED).culprit();
    job.set_state(control::v1::JOB_STATE_FAILED);
    job.set_attempt(2);
    return job;
  }
};

TEST(FirstErrorTest, IsThatOfTheNamedRankInItsAttemptLiveAndSaved) {
  FailedJob live;
  const auto diagnosis = DiagnoseJob(&live, {});
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_EQ(diagnosis->findings.first_error, "E worker 3: storage: no space left");
  EXPECT_THAT(ToText(diagnosis->findings),
              testing::HasSubstr("\nits error E worker 3: storage: no space left\n"));
  EXPECT_EQ(DiagnoseJob(&live, {.is_brief = true})->findings.first_error, "");
  const std::string path = ::testing::TempDir() + "/failed.gz";
  const SaveOptions options = {
      .num_steps = 5, .rank = diagnosis->rank, .attempt = diagnosis->attempt};
  ASSERT_TRUE(SaveEvidence(&live, options, path).ok());
  const auto saved = SavedEvidence(path);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ((*saved)->FirstErrorOf(3, 1), "E worker 3: storage: no space left");
  EXPECT_EQ((*saved)->FirstErrorOf(3, 2), "");
  EXPECT_EQ((*saved)->FirstErrorOf(0, 1), "");
}

// Returns the answer of one of four ranks on two machines, without its spans.
control::v1::StreamSpansResponse NoSpansOf(int rank, int64_t read_nanos) {
  control::v1::StreamSpansResponse response;
  response.set_rank(rank);
  response.set_node_id(rank < 2 ? "a" : "b");
  response.set_read_nanos(read_nanos);
  return response;
}

// Rank 3 ran a forward pass of step 7 when it died; the others had ended all that they could.
class FailedJobWithSpans final : public FailedJob {
 public:
  absl::Status Spans(
      int64_t /*first_step*/,
      const std::function<void(const control::v1::StreamSpansResponse&)>& add) override {
    const std::vector<plan::RankPlan> plans = trace::JobSpans::Create(SmallSpec()).value().plans();
    for (int rank = 0; rank < 4; ++rank) {
      control::v1::StreamSpansResponse response = NoSpansOf(rank, 9'000'000'000);
      for (const plan::Instruction& instruction : plans[static_cast<size_t>(rank)].instructions) {
        telemetry::v1::Span* span = response.add_spans();
        span->set_step(7);
        span->set_begin_nanos(1'000'000'000);
        span->set_instruction(instruction.id.packed());
        if (instruction.kind() == plan::OpKind::kForward && rank == 3) break;
        span->set_end_nanos(2'000'000'000);
      }
      add(response);
    }
    return absl::OkStatus();
  }
};

TEST(LastPositionsTest, AFailedJobNamesTheInstructionInWhichTheRankStood) {
  FailedJobWithSpans source;
  const auto diagnosis = DiagnoseJob(&source, {.num_steps = 5});
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_EQ(diagnosis->findings.verdict, "failed: rank 3, node b, in attempt 1");
  EXPECT_THAT(diagnosis->findings.evidence,
              testing::Contains(testing::AllOf(testing::StartsWith("rank 3 stood in forward F."),
                                               testing::HasSubstr("when the attempt ended"))));
  EXPECT_EQ(diagnosis->details["instruction"].get<std::string>().substr(0, 2), "F.");
  EXPECT_EQ(diagnosis->details["step"], 7);
  // For the line of `status`, nothing is read.
  EXPECT_FALSE(
      DiagnoseJob(&source, {.num_steps = 5, .is_brief = true})->details.contains("instruction"));
}

TEST(BriefVerdictTest, OfALargeJobItNamesTheCommandAndReadsNothing) {
  class NothingIsRead final : public OneJob {
   public:
    absl::Status Spans(
        int64_t /*first_step*/,
        const std::function<void(const control::v1::StreamSpansResponse&)>& /*add*/) override {
      ADD_FAILURE();
      return absl::OkStatus();
    }
  } source;
  Job job = *source.Job();
  job.set_state(control::v1::JOB_STATE_RUNNING);
  while (job.ranks_size() <= kBriefRanksMax) job.add_ranks();
  EXPECT_EQ(BriefVerdict(&source, job),
            "not made here, because the job is large; ask with `megascale diagnose demo`");
  job.set_state(control::v1::JOB_STATE_PENDING);
  EXPECT_EQ(BriefVerdict(&source, job), "");
  OneMachineStopped small;
  job = *small.Job();
  EXPECT_THAT(BriefVerdict(&small, job), testing::StartsWith("silent: node a"));
}

// Steps 1 to 7 took a second each; `slow_rank` was slow in all of them.
class SucceededJob final : public OneJob {
 public:
  explicit SucceededJob(int slow_rank, int64_t num_steps = 7)
      : slow_rank_(slow_rank), num_steps_(num_steps) {}

  absl::StatusOr<control::v1::Job> Job() override {
    ASSIGN_OR_RETURN(control::v1::Job job, OneJob::Job());
    job.set_state(control::v1::JOB_STATE_SUCCEEDED);
    return job;
  }
  absl::Status Spans(
      int64_t /*first_step*/,
      const std::function<void(const control::v1::StreamSpansResponse&)>& add) override {
    const std::vector<plan::RankPlan> plans = trace::JobSpans::Create(SmallSpec()).value().plans();
    for (int rank = 0; rank < 4; ++rank) {
      control::v1::StreamSpansResponse response = NoSpansOf(rank, 900'000'000'000);
      for (int64_t step = 8 - num_steps_; step <= 7; ++step) {
        int64_t begin = step * 1'000'000'000;
        for (const plan::Instruction& i : plans[static_cast<size_t>(rank)].instructions) {
          telemetry::v1::Span* span = response.add_spans();
          span->set_step(step);
          span->set_instruction(i.id.packed());
          const bool computes =
              i.kind() == plan::OpKind::kForward || i.kind() == plan::OpKind::kBackward;
          span->set_begin_nanos(begin);
          begin += !computes ? 1'000'000 : rank == slow_rank_ ? 150'000'000 : 30'000'000;
          span->set_end_nanos(begin);
        }
      }
      add(response);
    }
    return absl::OkStatus();
  }

 private:
  const int slow_rank_;
  const int64_t num_steps_;
};

TEST(LastStepsTest, AJobThatSucceededSaysWhetherItsLastStepsWereSlow) {
  SucceededJob slow(3);
  const auto diagnosis = DiagnoseJob(&slow, {.num_steps = 20});
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_EQ(diagnosis->findings.cause, "slow_worker") << ToText(diagnosis->findings);
  EXPECT_THAT(diagnosis->findings.verdict,
              testing::AllOf(testing::StartsWith("ended: "),
                             testing::HasSubstr("; its last steps: slow worker: rank 3")));
  EXPECT_EQ(diagnosis->rank, 3);
  EXPECT_THAT(ToText(diagnosis->findings), testing::Not(testing::HasSubstr("megascale evict")));
  SucceededJob healthy(-1);
  const auto calm = DiagnoseJob(&healthy, {.num_steps = 20});
  ASSERT_TRUE(calm.ok()) << calm.status();
  EXPECT_EQ(calm->findings.cause, "ended") << ToText(calm->findings);
  EXPECT_EQ(calm->rank, -1);
  // For the line of `status`, nothing is read.
  EXPECT_THAT(DiagnoseJob(&slow, {.num_steps = 20, .is_brief = true})->findings.verdict,
              testing::Not(testing::HasSubstr("last steps")));
}

TEST(LastStepsTest, ThatTooFewWereKeptIsSaid) {
  SucceededJob source(3, 2);
  const auto diagnosis = DiagnoseJob(&source, {.num_steps = 20});
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_EQ(diagnosis->findings.cause, "ended");
  EXPECT_THAT(diagnosis->findings.evidence,
              testing::ElementsAre("2 steps are kept, and 3 are needed to judge"));
}

TEST(FirstErrorTest, IsTheFirstLineOfLevelErrorOrOfALibraryThatReportsOne) {
  const auto first_of = [](const std::vector<std::string>& pieces) {
    FirstError first;
    for (const std::string& piece : pieces) first.Add(piece);
    return first.line();
  };
  const std::string info = "2026-01-31T12:00:00.123Z I worker 3: no error so far\n";
  const std::string error = "2026-01-31T12:00:01.123Z E worker 3: storage: no space left\n";
  EXPECT_EQ(first_of({}), "");
  EXPECT_EQ(first_of({info}), "") << "of level I";
  EXPECT_EQ(first_of({info + "loading\n", error + "terminate called\n"}),
            error.substr(0, error.size() - 1));
  EXPECT_EQ(first_of({info, "NCCL: unhandled system Error\n", error}),
            "NCCL: unhandled system Error");
  EXPECT_LT(first_of({"fatal \x1b[2J" + std::string(9000, 'x') + "\n"}).size(), 320u);
  EXPECT_EQ(first_of({"fatal \x1b[2J\n"}).find('\x1b'), std::string::npos);
}

TEST(SavedEvidenceTest, AJobWithOtherRanksThanItsSizesIsRefused) {
  class ThreeRanks final : public OneJob {
    absl::StatusOr<control::v1::Job> Job() override {
      control::v1::Job job = *OneJob::Job();
      job.mutable_ranks()->RemoveLast();
      return job;
    }
  } live;
  const std::string path = ::testing::TempDir() + "/three.gz";
  ASSERT_TRUE(SaveEvidence(&live, {.num_steps = 5}, path).ok());
  EXPECT_EQ(SavedEvidence(path).status().message(), "holds 3 ranks, but the job has 4");
}

TEST(SavedEvidenceTest, AnythingElseIsRefused) {
  const std::string path = ::testing::TempDir() + "/other";
  EXPECT_EQ(SavedEvidence(path + "-missing").status().code(), absl::StatusCode::kNotFound);
  for (const char* text :
       {"", "job {\"jobId\": ", "evidence-x {}", "something else\n", "job {\"jobId\": \"x\"}",
        R"(job {"jobId": "x", "spec": {"name": "x", "train": {"microBatchSize": 0}}})"}) {
    std::ofstream(path) << text;
    EXPECT_EQ(SavedEvidence(path).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace megascale::cli
