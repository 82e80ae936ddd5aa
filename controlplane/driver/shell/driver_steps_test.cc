// The way of step records through the shell: which agents are told to report them, which
// acknowledgements they get, and what waits for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/testing/test_events.h"
#include "controlplane/driver/shell/driver_shell.h"
#include "controlplane/driver/shell/job_triggers.h"
#include "controlplane/driver/shell/testing/shell_test_base.h"
#include "controlplane/driver/storage/loss_history.h"
#include "controlplane/driver/storage/testing/simulated_disk.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::StartsWith;

constexpr int64_t kEvaluationInterval = 40;

class CountingLink : public AgentLink {
 public:
  void SendDesired(const agent::DesiredState& desired) override {
    last = desired;
    ++num_sent;
  }
  void Close(const absl::Status& why) override { closed = why; }
  agent::DesiredState last;
  absl::Status closed;
  int num_sent = 0;
};

// Job "j" of three ranks, one on each of the nodes n0, n1 and n2: n0 reports, n1 is its deputy.
class DriverStepsTest : public ShellTestBase {
 protected:
  explicit DriverStepsTest(absl::Duration loss_log_interval = JobLogs::kSyncInterval)
      : loss_log_interval_(loss_log_interval) {}

  void SetUp() override {
    DriverShell::Options options;
    options.state_directory = "/state";
    options.files = &disk_;
    options.loss_log_interval = loss_log_interval_;
    Begin(&disk_, std::move(options));
    megascale::job::v1::JobSpec spec = SpecOf(3, 1, 300);
    spec.mutable_train()->set_eval_interval(kEvaluationInterval);
    Round([&] { EXPECT_TRUE(shell_->Submit(Submitted("j", spec).job_submitted()).ok()); });
    for (const char* node_id : {"n0", "n1", "n2"}) {
      links_[node_id] = std::make_shared<CountingLink>();
      Round([&] { shell_->OnHello(HelloFrom(node_id), links_[node_id]); });
      agent::ActualState& report = reports_[node_id];
      report.set_incarnation("a");
      agent::ActualJob* actual = report.add_jobs();
      actual->set_job_id("j");
      actual->set_attempt(1);
      actual->mutable_preflight()->set_state(agent::Preflight::STATE_PASSED);
    }
    Pass(absl::Seconds(1));
    for (int rank = 0; rank < 3; ++rank) {
      agent::ActualRank* actual = JobOn(absl::StrCat("n", rank))->add_ranks();
      actual->set_state(agent::ActualRank::STATE_RUNNING);
      actual->mutable_status()->set_rank(rank);
      actual->mutable_status()->set_phase(telemetry::PHASE_TRAINING);
      JobOn(absl::StrCat("n", rank))->set_num_processes(2);
    }
    Pass(absl::Seconds(1));
    ASSERT_EQ(job().state(), control::JOB_STATE_RUNNING);
  }

  static agent::Hello HelloFrom(const std::string& node_id) {
    agent::Hello hello = HelloOf(node_id, "a", 1);
    hello.set_evaluates(true);
    return hello;
  }

  // Lets time pass, in which the agents repeat their reports, but for the silent ones.
  void Pass(absl::Duration duration) {
    for (absl::Duration passed; passed < duration; passed += absl::Milliseconds(250)) {
      clock_.Advance(absl::Milliseconds(250));
      for (auto& [node_id, report] : reports_) {
        report.set_applied_version(VersionOfEvent(shell_->state().num_events()));
        if (silent_.count(node_id) > 0) continue;
        Round([&, id = node_id] { shell_->OnReport(id, reports_[id]); });
      }
      Round([] {});
    }
  }
  // All ranks complete steps up to `newest`; agents report them as they were told last.
  void Complete(int64_t newest) {
    for (auto& [node_id, report] : reports_) {
      agent::ActualJob* actual = report.mutable_jobs(0);
      actual->mutable_ranks(0)->mutable_status()->set_step(newest);
      if (links_[node_id]->last.jobs(0).step_duty() == agent::STEP_DUTY_REPORT) {
        AddSteps(node_id, newest);
      }
    }
  }
  void AddSteps(const std::string& node_id, int64_t newest) {
    JobOn(node_id)->clear_steps();
    for (int64_t step = 1; step <= newest; ++step) {
      auto* record = JobOn(node_id)->add_steps();
      record->set_step(step);
      record->set_attempt(job().attempt());
      record->set_seconds(step_seconds_);
      record->set_checkpoint_seconds(checkpoint_seconds_);
      if (step % kEvaluationInterval == 0) record->set_evaluation_seconds(evaluation_seconds_);
    }
  }
  void AddManifest(int64_t step) {
    auto* manifest = JobOn("n0")->add_manifests();
    manifest->set_attempt(1);
    manifest->set_step(step);
    manifest->set_directory(absl::StrCat(CheckpointDirectory(job()), "/step-", step));
  }
  void FailRank(int rank) {
    agent::ActualRank* failed = JobOn(absl::StrCat("n", rank))->mutable_ranks(0);
    failed->set_state(agent::ActualRank::STATE_FAILED);
    failed->mutable_failure()->set_failure_class(telemetry::FAILURE_CLASS_EXITED);
    for (auto& [node_id, report] : reports_) report.mutable_jobs(0)->set_num_processes(0);
  }
  // Rank 2 fails, and somebody cancels the job.
  void FailAndCancel() {
    Event cancel = Cancelled(true);
    cancel.mutable_cancel_requested()->set_job_id("j");
    FailRank(2);
    Round([&] { EXPECT_TRUE(shell_->Cancel(cancel.cancel_requested()).ok()); });
  }
  // A job of one rank succeeds while no other runs.
  void RunToItsEnd(const std::string& job_id) {
    constexpr int64_t kSteps = 10;
    for (auto& [node_id, report] : reports_) report.clear_jobs();
    Round([&] {
      const Event event = Submitted(job_id, SpecOf(1, 1, kSteps));
      EXPECT_TRUE(shell_->Submit(event.job_submitted()).ok());
    });
    const std::string node_id = NodeOfRank(*FindJob(shell_->state(), job_id), 0);
    ASSERT_EQ(reports_.count(node_id), 1u) << job_id << " was not placed on " << node_id;
    agent::ActualJob* actual = reports_[node_id].add_jobs();
    actual->set_job_id(job_id);
    actual->set_attempt(1);
    actual->mutable_preflight()->set_state(agent::Preflight::STATE_PASSED);
    Pass(absl::Seconds(1));
    agent::ActualRank* rank = actual->add_ranks();
    rank->set_state(agent::ActualRank::STATE_RUNNING);
    rank->mutable_status()->set_phase(telemetry::PHASE_TRAINING);
    actual->set_num_processes(2);
    Pass(absl::Seconds(1));
    rank->mutable_status()->set_step(kSteps);
    AddSteps(node_id, kSteps);
    Pass(absl::Seconds(1));
    rank->set_state(agent::ActualRank::STATE_FINISHED);
    actual->set_num_processes(1);  // the host
    agent::StoredShard* shard = actual->add_shards();
    shard->set_attempt(1);
    shard->set_step(kSteps);
    auto* manifest = actual->add_manifests();
    manifest->set_attempt(1);
    manifest->set_step(kSteps);
    manifest->set_directory(CheckpointDirectory(*FindJob(shell_->state(), job_id)) + "/step-10");
    Pass(absl::Seconds(1));
    actual->mutable_retained()->set_attempt(1);
    actual->mutable_retained()->set_step(kSteps);
    actual->set_num_processes(0);
    Pass(absl::Minutes(2));
    ASSERT_EQ(FindJob(shell_->state(), job_id)->state(), control::JOB_STATE_SUCCEEDED);
  }
  // All ranks of the job's attempt train; agents have no steps of it yet.
  void Train() {
    for (auto& [node_id, report] : reports_) {
      agent::ActualJob* actual = report.mutable_jobs(0);
      actual->set_attempt(job().attempt());
      actual->clear_steps();
      actual->set_num_processes(2);
      actual->mutable_ranks(0)->set_state(agent::ActualRank::STATE_RUNNING);
      actual->mutable_ranks(0)->clear_failure();
    }
    Pass(absl::Seconds(1));
  }
  // The rank's process fails, and the machine's others have not ended yet: the job waits for them.
  void FailRankThatLingers(int rank) {
    FailRank(rank);
    JobOn(absl::StrCat("n", rank))->set_num_processes(1);
  }
  std::vector<int64_t> LoggedSteps() {
    std::vector<int64_t> steps;
    const auto records = ReadSteps(job().submitted().directory(), &disk_, 0, 100);
    if (!records.ok()) return steps;
    for (const auto& record : *records) steps.push_back(record.step());
    return steps;
  }

  std::string LoggedAttempts() {
    return driver::LoggedAttempts(job().submitted().directory(), &disk_);
  }

  // Drops what is not durable, as a loss of power does, and returns what is left of the loss log.
  std::string DurableAttempts() {
    disk_.Crash();
    return LoggedAttempts();
  }

  std::vector<int64_t> StepsSince(int64_t* position) const {
    std::vector<int64_t> steps;
    for (const auto& record : shell_->view()->StepsSince("j", position)) {
      steps.push_back(record.step());
    }
    return steps;
  }
  int64_t LastStep() const { return shell_->view()->Job("j", clock_.Wall())->last_step(); }

  agent::ActualJob* JobOn(const std::string& node_id) { return reports_[node_id].mutable_jobs(0); }
  const agent::DesiredJob& Told(const std::string& node_id) {
    return links_[node_id]->last.jobs(0);
  }

  // What the reporting rank says of each step.
  double step_seconds_ = 0;
  double checkpoint_seconds_ = 0;
  double evaluation_seconds_ = 0;
  const absl::Duration loss_log_interval_;
  std::map<std::string, std::shared_ptr<CountingLink>> links_;
  std::map<std::string, agent::ActualState> reports_;
  std::set<std::string> silent_;
};

TEST_F(DriverStepsTest, OnlyTheTwoAgentsThatKeepStepsAreToldOfEachStep) {
  EXPECT_EQ(Told("n0").step_duty(), agent::STEP_DUTY_REPORT);
  EXPECT_EQ(Told("n1").step_duty(), agent::STEP_DUTY_KEEP);
  EXPECT_EQ(Told("n2").step_duty(), agent::STEP_DUTY_NONE);
  const int before = links_["n2"]->num_sent;
  for (int64_t step = 1; step <= 5; ++step) {
    Complete(step);
    Pass(absl::Seconds(1));
  }
  EXPECT_EQ(Told("n0").acked_step(), 5);
  EXPECT_EQ(Told("n1").acked_step(), 5);
  EXPECT_EQ(links_["n2"]->num_sent, before);
}

TEST_F(DriverStepsTest, TheDeputyTakesOverWithoutAGapAndWithoutAnAttempt) {
  Complete(1);
  Pass(absl::Seconds(1));
  silent_.insert("n0");
  Complete(2);
  Pass(absl::Milliseconds(1250));
  ASSERT_EQ(Told("n1").step_duty(), agent::STEP_DUTY_REPORT);
  Complete(4);
  Pass(absl::Milliseconds(500));
  EXPECT_THAT(LoggedSteps(), ElementsAre(1, 2, 3, 4));
  silent_.clear();  // it repeats what it has, which is known
  Pass(absl::Seconds(2));
  EXPECT_THAT(LoggedSteps(), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(Told("n0").step_duty(), agent::STEP_DUTY_KEEP);
  EXPECT_EQ(job().attempt(), 1);
}

TEST_F(DriverStepsTest, ACheckpointWaitsForTheStepsBeforeIt) {
  Complete(1);
  Pass(absl::Seconds(1));
  for (auto& [node_id, report] : reports_) {
    report.mutable_jobs(0)->mutable_ranks(0)->mutable_status()->set_step(2);
  }
  AddManifest(2);  // n0 has not sent its record of step 2, nor has its deputy
  Pass(absl::Seconds(3));
  EXPECT_EQ(job().committed_size(), 0);
  AddSteps("n1", 2);
  Pass(absl::Seconds(1));
  EXPECT_EQ(job().committed_size(), 1);
}

// The machines of both keepers are lost: the steps are computed again, and no line is missing.
TEST_F(DriverStepsTest, ACheckpointWhoseStepsAreLostIsNeverCommitted) {
  Complete(1);
  Pass(absl::Seconds(1));
  AddManifest(2);
  FailRank(2);
  Pass(absl::Minutes(1));
  ASSERT_NE(job().attempt(), 1) << "nothing waits for the checkpoint";
  EXPECT_EQ(job().committed_size(), 0);
}

// The log lost its end, after all its steps were acknowledged.
TEST_F(DriverStepsTest, ACheckpointDoesNotWaitForEverForLinesThatAreLost) {
  Complete(1);
  Pass(absl::Seconds(1));
  AddManifest(2);
  Pass(absl::Seconds(34));
  EXPECT_EQ(job().committed_size(), 0);
  Pass(absl::Seconds(3));
  EXPECT_EQ(job().committed_size(), 1);
}

TEST_F(DriverStepsTest, StepsThatComeWithTheEndOfTheAttemptCountAsItsProgress) {
  FailRank(2);
  Round([&] { shell_->OnReport("n2", reports_["n2"]); });
  ASSERT_EQ(job().stage(), pb::STAGE_FENCE);
  AddSteps("n1", 3);  // it reports them because its ranks have ended
  Pass(absl::Milliseconds(250));
  EXPECT_EQ(job().best_step(), 3);
  EXPECT_EQ(job().attempts_without_progress(), 0);
}

// As among thousands of jobs: after step 2, the log of the job waits for an hour for its turn.
class DriverStepsInTurnTest : public DriverStepsTest {
 protected:
  DriverStepsInTurnTest() : DriverStepsTest(absl::Hours(1)) {}
  void SetUp() override {
    DriverStepsTest::SetUp();
    for (const int64_t step : {1, 2}) {  // the first step is progress, the next one has its turn
      Complete(step);
      Pass(absl::Seconds(1));
    }
  }
};

TEST_F(DriverStepsInTurnTest, StepsThatAreNotDurableAreNeitherAcknowledgedNorShown) {
  int64_t position = 0;
  const int num_sent = links_["n0"]->num_sent;
  Complete(5);
  Pass(absl::Seconds(2));
  EXPECT_EQ(links_["n0"]->num_sent, num_sent);
  EXPECT_EQ(links_["n0"]->last.jobs(0).acked_step(), 2);
  EXPECT_EQ(LastStep(), 2);
  EXPECT_THAT(StepsSince(&position), ElementsAre(1, 2));
  Pass(absl::Hours(1));
  EXPECT_EQ(links_["n0"]->last.jobs(0).acked_step(), 5);
  EXPECT_THAT(StepsSince(&position), ElementsAre(3, 4, 5));
}

TEST_F(DriverStepsInTurnTest, StepsAreDurableBeforeACheckpointAFailureOrAMinute) {
  Complete(5);
  AddManifest(5);
  Pass(absl::Milliseconds(250));
  ASSERT_EQ(NewestCommittedStep(job()), 5);
  EXPECT_EQ(DurableAttempts(), "1/1 2/1 3/1 4/1 5/1");
  Complete(7);
  Pass(absl::Seconds(61));
  EXPECT_EQ(DurableAttempts(), "1/1 2/1 3/1 4/1 5/1 6/1 7/1");
  Complete(8);
  Pass(absl::Milliseconds(250));
  FailRank(2);
  Pass(absl::Milliseconds(250));
  ASSERT_NE(job().stage(), pb::STAGE_RUN);
  EXPECT_EQ(DurableAttempts(), "1/1 2/1 3/1 4/1 5/1 6/1 7/1 8/1");
}

TEST_F(DriverStepsTest, AWatcherGetsEachStepOnceThoughTheLossLogFailsForAMoment) {
  int64_t slow = 0;  // looks only once
  int64_t prompt = 0;
  Complete(3);
  Pass(absl::Seconds(1));
  EXPECT_THAT(StepsSince(&prompt), ElementsAre(1, 2, 3));
  int64_t last = 3;
  for (const char* effect : {"append to /state/jobs/j/metrics", "sync /state/jobs/j/metrics"}) {
    disk_.FailOn(effect);
    Complete(last + 2);
    Pass(absl::Milliseconds(500));
    EXPECT_EQ(LastStep(), last) << "what people have seen is not taken back";
    EXPECT_THAT(StepsSince(&prompt), ElementsAre());
    disk_.FailOn("");
    Complete(last + 3);
    Pass(absl::Seconds(2));
    EXPECT_THAT(StepsSince(&prompt), ElementsAre(last + 1, last + 2, last + 3)) << effect;
    last += 3;
  }
  EXPECT_THAT(StepsSince(&slow), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
}

// A script that cleans up takes the file away while the job trains.
TEST_F(DriverStepsTest, ALossLogThatIsDeletedIsMadeAnewAndStatusSaysSo) {
  const std::string path = "/state/jobs/j/metrics.jsonl";
  Complete(3);
  Pass(absl::Seconds(1));
  ASSERT_THAT(LoggedSteps(), ElementsAre(1, 2, 3));
  EXPECT_TRUE(shell_->view()->Job("j", clock_.Wall())->warnings().empty());
  disk_.DeleteFile(path);
  Complete(5);
  Pass(absl::Seconds(2));
  Complete(6);
  Pass(absl::Seconds(2));
  EXPECT_THAT(LoggedSteps(), ElementsAre(1, 2, 3, 4, 5, 6));
  const auto warned = ElementsAre(StartsWith(path + " was deleted or moved"));
  EXPECT_THAT(shell_->view()->Job("j", clock_.Wall())->warnings(), warned);

  disk_.DeleteFile(path);  // no step follows
  FailAndCancel();
  Pass(absl::Minutes(2));
  ASSERT_EQ(job().stage(), pb::STAGE_ENDED);
  EXPECT_THAT(LoggedSteps(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(shell_->view()->Job("j", clock_.Wall())->warnings(), warned);
}

TEST_F(DriverStepsTest, ALossLogThatIsDeletedBeforeARollbackIsCutAllTheSame) {
  Complete(3);
  Pass(absl::Seconds(1));
  disk_.DeleteFile("/state/jobs/j/metrics.jsonl");
  FailRank(2);
  Pass(absl::Seconds(3));
  ASSERT_EQ(job().attempt(), 2);
  EXPECT_THAT(LoggedSteps(), ElementsAre());
  EXPECT_TRUE(disk_.Exists("/state/jobs/j/metrics.attempt-1.jsonl"));
}

TEST_F(DriverStepsTest, StatusShowsALossLogThatCannotBeWritten) {
  disk_.FailOn("append to /state/jobs/j/metrics");
  Complete(3);
  Pass(absl::Seconds(1));
  EXPECT_THAT(shell_->view()->Job("j", clock_.Wall())->warnings(),
              ElementsAre(StartsWith("its loss log cannot be used: append to")));
  disk_.FailOn("");
  Complete(4);
  Pass(absl::Seconds(3));
  EXPECT_TRUE(shell_->view()->Job("j", clock_.Wall())->warnings().empty());
}

TEST_F(DriverStepsTest, NumbersThatAreNoStepsOfTheJobAreIgnored) {
  for (const int64_t step : {int64_t{-1}, int64_t{0}, int64_t{301}, int64_t{1} << 62}) {
    JobOn("n0")->clear_steps();
    auto* record = JobOn("n0")->add_steps();
    record->set_step(step);
    record->set_attempt(1);
    Pass(absl::Seconds(10));
    EXPECT_THAT(LoggedSteps(), ElementsAre()) << step;
  }
  Complete(2);
  Pass(absl::Seconds(1));
  EXPECT_THAT(LoggedSteps(), ElementsAre(1, 2));
}

// A rollback happened while the log could not be written, and then the job ended.
TEST_F(DriverStepsTest, StepsThatWereRolledBackAreCutFromALogThatWorksAgainAfterTheEnd) {
  Complete(3);
  Pass(absl::Seconds(1));
  ASSERT_THAT(LoggedSteps(), ElementsAre(1, 2, 3));
  disk_.FailOn("metrics");
  FailRank(2);
  Pass(absl::Seconds(3));
  ASSERT_EQ(job().attempt(), 2);
  ASSERT_EQ(job().stage(), pb::STAGE_RUN);
  EXPECT_EQ(LastStep(), 0) << "its steps are computed again";
  for (auto& [node_id, report] : reports_) report.mutable_jobs(0)->Clear();
  Pass(absl::Seconds(40));  // the log is set aside
  Event cancel = Cancelled(false);
  cancel.mutable_cancel_requested()->set_job_id("j");
  Round([&] { EXPECT_TRUE(shell_->Cancel(cancel.cancel_requested()).ok()); });
  Pass(absl::Minutes(2));
  ASSERT_EQ(job().stage(), pb::STAGE_ENDED);
  EXPECT_EQ(shell_->num_loss_logs(), 0u);
  disk_.FailOn("");
  EXPECT_THAT(LoggedSteps(), ElementsAre(1, 2, 3));
  Pass(absl::Minutes(2));
  EXPECT_THAT(LoggedSteps(), ElementsAre()) << "attempt 2 began at step 0";
}

// An attempt begins while the log cannot be written, and is about to end when it can.
TEST_F(DriverStepsTest, StepsThatWereRolledBackGiveWayToThoseOfAnAttemptThatEnds) {
  int64_t position = 0;
  Complete(3);
  Pass(absl::Seconds(1));
  EXPECT_THAT(StepsSince(&position), ElementsAre(1, 2, 3));
  disk_.FailOn("metrics");
  FailRank(2);
  Pass(absl::Seconds(3));
  ASSERT_EQ(job().attempt(), 2);
  ASSERT_EQ(job().restore().step(), 0);
  Train();
  Complete(5);
  FailRankThatLingers(2);
  Pass(absl::Seconds(1));
  ASSERT_EQ(job().stage(), pb::STAGE_FENCE);
  EXPECT_THAT(StepsSince(&position), ElementsAre());
  disk_.FailOn("");
  Pass(absl::Seconds(2));
  ASSERT_EQ(job().attempt(), 2);
  EXPECT_EQ(LoggedAttempts(), "1/2 2/2 3/2 4/2 5/2");
  EXPECT_THAT(StepsSince(&position), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(Told("n0").acked_step(), 5);
}

// As above, and the driver ends before the log can be written.
TEST_F(DriverStepsTest, ADriverThatStartsDuringAFenceCutsTheLogBeforeItTakesSteps) {
  Complete(3);
  Pass(absl::Seconds(1));
  disk_.FailOn("metrics");
  FailRank(2);
  Pass(absl::Seconds(3));
  ASSERT_EQ(job().attempt(), 2);
  Train();
  Complete(5);
  FailRankThatLingers(2);
  Pass(absl::Seconds(1));
  ASSERT_EQ(job().stage(), pb::STAGE_FENCE);
  disk_.FailOn("");
  DriverShell::Options options;
  options.state_directory = "/state";
  options.files = &disk_;
  Begin(&disk_, std::move(options));
  for (auto& [node_id, link] : links_) {
    Round([&, id = node_id] { shell_->OnHello(HelloFrom(id), links_[id]); });
  }
  Pass(absl::Seconds(2));
  ASSERT_EQ(job().attempt(), 2);
  EXPECT_EQ(LoggedAttempts(), "1/2 2/2 3/2 4/2 5/2");
}

// A list reads no files, and the best step of an attempt is logged once.
TEST_F(DriverStepsTest, AListKnowsTheLastStepOfAJobThatEndedBeforeTheDriverStarted) {
  for (int64_t step = 1; step <= 5; ++step) {
    Complete(step);
    Pass(absl::Seconds(1));
  }
  ASSERT_EQ(job().best_step(), 1);
  FailAndCancel();
  Pass(absl::Minutes(2));
  ASSERT_EQ(job().stage(), pb::STAGE_ENDED);
  DriverShell::Options options;
  options.state_directory = "/state";
  options.files = &disk_;
  Begin(&disk_, std::move(options));
  const auto list = shell_->view()->List({}, clock_.Wall());
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->jobs(0).last_step(), 5);
}

// Its agents still have what its ranks did.
TEST_F(DriverStepsTest, TheLastEvidenceOfAJobThatWasCancelledIsCollectedToo) {
  Complete(3);
  Pass(absl::Seconds(1));
  EXPECT_THAT(shell_->view()->EndedSince(absl::UnixEpoch()), ElementsAre());
  FailAndCancel();
  Pass(absl::Minutes(2));
  ASSERT_EQ(job().state(), control::JOB_STATE_CANCELLED);
  EXPECT_THAT(shell_->view()->EndedSince(absl::UnixEpoch()), ElementsAre("j"));
  EXPECT_THAT(shell_->view()->EndedSince(clock_.Wall() + absl::Seconds(1)), ElementsAre());
}

TEST_F(DriverStepsTest, TheLastEvidenceOfAJobThatSucceededIsCollectedToo) {
  Complete(300);
  Pass(absl::Seconds(1));
  for (auto& [node_id, report] : reports_) {
    agent::ActualRank* rank = report.mutable_jobs(0)->mutable_ranks(0);
    rank->set_state(agent::ActualRank::STATE_FINISHED);
    rank->mutable_status()->set_phase(telemetry::PHASE_FINISHED);
    report.mutable_jobs(0)->set_num_processes(1);  // the host
    agent::StoredShard* shard = report.mutable_jobs(0)->add_shards();
    shard->set_attempt(1);
    shard->set_step(300);
    shard->set_rank(rank->status().rank());
  }
  Pass(absl::Seconds(1));
  AddManifest(300);
  Pass(absl::Seconds(1));
  for (auto& [node_id, report] : reports_) {
    report.mutable_jobs(0)->mutable_retained()->set_attempt(1);
    report.mutable_jobs(0)->mutable_retained()->set_step(300);
    report.mutable_jobs(0)->set_num_processes(0);
  }
  Pass(absl::Minutes(2));
  ASSERT_EQ(job().state(), control::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(shell_->view()->EndedSince(absl::UnixEpoch()), ElementsAre("j"));
  EXPECT_THAT(shell_->view()->EndedSince(clock_.Wall() + absl::Seconds(1)), ElementsAre());
}

TEST_F(DriverStepsTest, ANodeShowsTheNewestSampleOfEachGpu) {
  for (int i = 0; i < 100; ++i) {
    reports_["n1"].add_gpus()->set_index(i);
    reports_["n1"].mutable_gpus(i)->set_temperature_celsius(64);
  }
  Pass(absl::Seconds(1));
  EXPECT_EQ(shell_->view()->Nodes().nodes(0).gpus_size(), 0);
  const control::NodeView node = shell_->view()->Nodes().nodes(1);
  EXPECT_EQ(node.gpus_size(), 64) << "an agent may report any number";
  EXPECT_EQ(node.gpus(0).temperature_celsius(), 64);
  EXPECT_EQ(shell_->view()->Node("n1")->gpus_size(), 64);
  // A report shows those whose turn it is.
  reports_["n1"].clear_gpus();
  reports_["n1"].add_gpus()->set_index(1);
  reports_["n1"].mutable_gpus(0)->set_temperature_celsius(70);
  Pass(absl::Seconds(1));
  const control::NodeView later = shell_->view()->Nodes().nodes(1);
  ASSERT_EQ(later.gpus_size(), 64);
  EXPECT_EQ(later.gpus(0).temperature_celsius(), 64);
  EXPECT_EQ(later.gpus(1).temperature_celsius(), 70);
  // The driver of the other GPUs hangs, and then that of all.
  for (int second = 0; second < 30; ++second) Pass(absl::Seconds(1));
  ASSERT_EQ(shell_->view()->Node("n1")->gpus_size(), 1);
  reports_["n1"].clear_gpus();
  for (int second = 0; second < 31; ++second) Pass(absl::Seconds(1));
  EXPECT_EQ(shell_->view()->Nodes().nodes(1).gpus_size(), 0);
}

// Agents keep the last attempts of few jobs: those that ended last can still be read.
TEST_F(DriverStepsTest, TheLastEvidenceOfJobsThatSucceededIsCollectedNewestFirstAfterTheOthers) {
  FailRank(2);
  Round([&] { EXPECT_TRUE(shell_->Cancel(Cancelled(true).cancel_requested()).ok()); });
  Pass(absl::Minutes(2));
  ASSERT_EQ(job().state(), control::JOB_STATE_CANCELLED);
  for (const char* job_id : {"a", "b", "c"}) RunToItsEnd(job_id);
  EXPECT_THAT(shell_->view()->EndedSince(absl::UnixEpoch()), ElementsAre("j", "c", "b", "a"));
}

// The spec has a checkpoint after every tenth step.
TEST_F(DriverStepsTest, TheLossOnHeldOutTextIsShownAndTheLowestIsDurable) {
  const auto report = [&](int64_t newest, double held_out) {
    AddSteps("n0", newest);
    JobOn("n0")->mutable_steps(static_cast<int>(newest) - 1)->set_held_out_loss(held_out);
    Pass(absl::Seconds(1));
  };
  report(2, 3.5);
  report(4, 3.0);
  report(6, 3.25);
  const control::Job seen = *shell_->view()->Job("j", clock_.Wall());
  EXPECT_EQ(seen.held_out().step(), 6);
  EXPECT_EQ(seen.held_out().loss(), 3.25);
  EXPECT_EQ(seen.lowest_held_out().step(), 4);
  EXPECT_EQ(job().lowest_held_out().loss(), 3.0);
}

TEST_F(DriverStepsTest, ASaveThatWasNotDueIsPartOfTheStep) {
  step_seconds_ = 0.5;
  checkpoint_seconds_ = 0.25;
  for (int64_t step = 1; step <= 25; ++step) {
    Complete(step);
    Pass(absl::Seconds(1));
  }
  const absl::Duration mean = shell_->view()->StepTime(job());
  EXPECT_NEAR(absl::ToDoubleSeconds(mean), 0.73, 0.001) << "(25 x 0.75 - 2 x 0.25) / 25";
  Pass(absl::Minutes(2));
  EXPECT_EQ(job().time_book().account().checkpoint_nanos(), 500'000'000);
}

TEST_F(DriverStepsTest, StepsAreNotSaidToTakeLongerThanTheTimeThatPassed) {
  step_seconds_ = 1;
  int64_t step = 0;
  while (step < 70) {
    Complete(++step);
    Pass(absl::Seconds(1));
  }
  step_seconds_ = 1000;
  for (int i = 0; i < 15; ++i) {
    Complete(++step);
    Pass(absl::Seconds(1));
  }
  EXPECT_LT(shell_->view()->StepTime(job()), absl::Seconds(5));
}

// --- which jobs deserve a diagnosis --------------------------------------------------------------

class JobTriggersTest : public DriverStepsTest {
 protected:
  // Every ten seconds the driver looks; meanwhile the ranks complete `steps` steps.
  std::vector<JobTriggers::Triggered> LookAfter(int64_t steps, double quiet_seconds = 0) {
    step_ += steps;
    for (auto& [node_id, report] : reports_) {
      report.mutable_jobs(0)->mutable_ranks(0)->mutable_status()->set_progress_age_seconds(
          quiet_seconds);
    }
    Complete(step_);
    return Look();
  }
  std::vector<JobTriggers::Triggered> Look() {
    Pass(JobTriggers::kInterval);
    return triggers_.Look(*shell_->view(), clock_.Monotonic(), &slow_looks_);
  }
  pb::SuspectFound Found(control::Suspicion::Kind kind) {
    pb::SuspectFound found;
    found.set_job_id("j");
    found.mutable_suspicion()->set_kind(kind);
    found.mutable_suspicion()->set_attempt(1);
    found.mutable_suspicion()->set_rank(1);
    found.mutable_suspicion()->set_node_id("n1");
    return found;
  }

  // The look at the job named n1 as its slow machine. Returns whether that is confirmed.
  bool EndRoundThatFindsN1() {
    const bool is_confirmed = slow_looks_.IsConfirmed("j", {"n1", 1, step_});
    slow_looks_.EndRound();
    return is_confirmed;
  }

  JobTriggers triggers_;
  diagnose::SlowLooks slow_looks_;
  int64_t step_ = 0;
};

TEST_F(JobTriggersTest, AJobThatStandsStillIsExaminedUntilItHasASuspect) {
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(LookAfter(10).empty()) << i;
  const std::vector<JobTriggers::Triggered> triggered = LookAfter(0, 9);
  ASSERT_EQ(triggered.size(), 1u);
  EXPECT_EQ(triggered[0].job_id, "j");
  EXPECT_EQ(triggered[0].verdict.reason, diagnose::TriggerReason::kStuck);
  EXPECT_EQ(triggered[0].sample.size(), 1u) << "it has one data group";
  Round([&] { EXPECT_TRUE(shell_->Suspect(Found(control::Suspicion::KIND_SLOW)).ok()); });
  EXPECT_FALSE(job().has_suspicion()) << "it is not slow, it stands still";
  Round([&] { EXPECT_TRUE(shell_->Suspect(Found(control::Suspicion::KIND_STALL)).ok()); });
  EXPECT_EQ(job().suspicion().kind(), control::Suspicion::KIND_STALL);
  EXPECT_TRUE(LookAfter(0, 19).empty());
}

TEST_F(JobTriggersTest, AJobThatBecomesSlowIsExaminedAndItsSuspectStays) {
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(LookAfter(10).empty()) << i;
  const std::vector<JobTriggers::Triggered> triggered = LookAfter(4);
  ASSERT_EQ(triggered.size(), 1u);
  EXPECT_EQ(triggered[0].verdict.reason, diagnose::TriggerReason::kHalfThroughput);
  EXPECT_EQ(triggered[0].verdict.normal_step, 60);
  LookAfter(4);
  Complete(++step_);
  Pass(absl::Seconds(1));
  Round([&] { EXPECT_TRUE(shell_->Suspect(Found(control::Suspicion::KIND_STALL)).ok()); });
  EXPECT_FALSE(job().has_suspicion()) << "it goes on";
  Round([&] { EXPECT_TRUE(shell_->Suspect(Found(control::Suspicion::KIND_SLOW)).ok()); });
  EXPECT_EQ(job().suspicion().kind(), control::Suspicion::KIND_SLOW);
  EXPECT_EQ(LookAfter(4).size(), 1u) << "the suspicion is confirmed as long as it lasts";
}

// A step of many times the usual length: the job has a stall suspicion before it ends.
TEST_F(JobTriggersTest, ASlowMachineIsConfirmedAlthoughTheJobStoodStillBetweenTheLooks) {
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(LookAfter(10).empty()) << i;
  ASSERT_EQ(LookAfter(4).at(0).verdict.reason, diagnose::TriggerReason::kHalfThroughput);
  EXPECT_FALSE(EndRoundThatFindsN1());
  ASSERT_EQ(LookAfter(0, 9).at(0).verdict.reason, diagnose::TriggerReason::kStuck);
  Round([&] { EXPECT_TRUE(shell_->Suspect(Found(control::Suspicion::KIND_STALL)).ok()); });
  slow_looks_.EndRound();
  EXPECT_TRUE(LookAfter(0, 19).empty()) << "it has a suspect";
  slow_looks_.EndRound();
  while (LookAfter(4).empty()) {  // a suspicion ends once the driver logs that steps were taken
    slow_looks_.EndRound();
    ASSERT_LT(step_, 200);
  }
  EXPECT_FALSE(job().has_suspicion());
  EXPECT_TRUE(EndRoundThatFindsN1());
}

TEST_F(JobTriggersTest, AnEvaluationIsNoPartOfAStepHoweverLittleTheRanksTellOfIt) {
  for (int i = 0; i < 7; ++i) EXPECT_TRUE(LookAfter(10).empty()) << i;
  step_ = 2 * kEvaluationInterval;
  Complete(step_);
  AddSteps("n0", step_ - 1);  // the record comes once the evaluation has ended
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Look().empty()) << i;
  evaluation_seconds_ = 35;
  EXPECT_TRUE(LookAfter(1).empty()) << "it has ended just now";
  for (const int64_t steps : {10, 10, 10, 7}) EXPECT_TRUE(LookAfter(steps).empty()) << steps;
  evaluation_seconds_ = 6;
  EXPECT_TRUE(LookAfter(4).empty()) << "an evaluation between two looks";
  ASSERT_EQ(step_, 3 * kEvaluationInterval + 2);
  EXPECT_TRUE(LookAfter(10).empty());
  ASSERT_EQ(LookAfter(4).size(), 1u) << "without an evaluation";
  evaluation_seconds_ = 1e6;
  ASSERT_EQ(LookAfter(22).size(), 0u);
  EXPECT_EQ(LookAfter(4).size(), 1u) << "a time that nobody believes hides nothing";
}

TEST_F(JobTriggersTest, ANewAttemptBeginsAnew) {
  for (int i = 0; i < 6; ++i) LookAfter(10);
  FailRank(2);
  Pass(absl::Minutes(1));
  ASSERT_NE(job().attempt(), 1);
  EXPECT_TRUE(triggers_.Look(*shell_->view(), clock_.Monotonic(), &slow_looks_).empty());
}

// --- clocks, epochs and files -------------------------------------------------------------------

TEST_F(DriverStepsTest, AStepOfTheWallClockMovesMomentsAndNoDuration) {
  const control::Job before = *shell_->view()->Job("j", clock_.Wall());
  for (const absl::Duration step : {absl::Hours(24), -absl::Hours(48), absl::Hours(25)}) {
    clock_.StepWall(step);
    Pass(absl::Seconds(10));
  }
  const control::Job after = *shell_->view()->Job("j", clock_.Wall());
  const int64_t passed = after.time_account().wall_nanos() - before.time_account().wall_nanos();
  EXPECT_NEAR(static_cast<double>(passed), 30e9, 1e9);
  EXPECT_NEAR(after.submitted_age_seconds() - before.submitted_age_seconds(), 30, 1);
  EXPECT_EQ(after.submitted_at().seconds(), before.submitted_at().seconds() + 3600);
}

TEST_F(DriverStepsTest, ADriverThatHasBegunAJobRefusesAnAgentOfANewerEpochInOneClearLine) {
  agent::Hello hello = HelloOf("n3", "a", 1);
  hello.mutable_known()->set_epoch(shell_->state().epoch() + 5);
  const auto link = std::make_shared<CountingLink>();
  Round([&] { EXPECT_FALSE(shell_->OnHello(hello, link)); });
  EXPECT_EQ(link->closed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(link->closed.message(), "this is the wrong driver for it"));
}

}  // namespace
}  // namespace megascale::driver
