// The shell with a clock that this test moves: only monotonic time decides.
#include "controlplane/driver/shell/driver_shell.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/epoch.h"
#include "controlplane/driver/core/testing/test_events.h"
#include "controlplane/driver/shell/job_view.h"
#include "controlplane/driver/shell/testing/shell_test_base.h"
#include "controlplane/driver/storage/testing/simulated_disk.h"
#include "runtime/base/log.h"
#include "runtime/telemetry/doing.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class KeepingLink : public AgentLink {
 public:
  void SendDesired(const agent::DesiredState& desired) override { last = desired; }
  void Close(const absl::Status& why) override { closed = why; }
  AgentPeer peer() const override { return {.certificate = shown, .address = address}; }
  agent::DesiredState last;
  absl::Status closed;
  std::string shown;
  std::string address;
};

// Job "j" of one rank on node n0, which runs and reports whenever time passes.
class DriverShellTest : public ShellTestBase {
 protected:
  void SetUp() override { Open(&disk_); }

  void Open(SimulatedDisk* disk) {
    DriverShell::Options options;
    options.state_directory = absl::StrCat(
        ::testing::TempDir(), "/", ::testing::UnitTest::GetInstance()->current_test_info()->name());
    options.files = files_;
    options.retention = {.newest = 1, .age = absl::Hours(1)};
    Begin(disk, std::move(options));
  }

  absl::Status Submit(const std::string& job_id) {
    absl::Status status;
    Round([&] { status = shell_->Submit(Submitted(job_id, SpecOf(1, 1, 2000)).job_submitted()); });
    return status;
  }
  void Cancel(const std::string& job_id) {
    Event cancel = Cancelled(false);
    cancel.mutable_cancel_requested()->set_job_id(job_id);
    Round([&] { EXPECT_TRUE(shell_->Cancel(cancel.cancel_requested()).ok()); });
  }
  // `measured`: the ceiling is a measurement of the machine, not the peak of devices.
  void Run(bool measured = true) {
    ASSERT_TRUE(Submit("j").ok());
    Round([&] { shell_->OnHello(HelloOf("n0", "a", 1), link_); });
    report_.set_incarnation("a");
    agent::ActualJob* actual = report_.add_jobs();
    actual->set_job_id("j");
    actual->set_attempt(1);
    agent::Preflight* preflight = actual->mutable_preflight();
    preflight->set_state(agent::Preflight::STATE_PASSED);
    preflight->set_flops_ceiling(2e11);
    if (measured) {
      preflight->mutable_ceiling_measured_at()->set_seconds(
          absl::ToUnixSeconds(clock_.Wall() - absl::Hours(5)));
    }
    Pass(absl::Seconds(1));
    actual->set_num_processes(2);
    agent::ActualRank* rank = actual->add_ranks();
    rank->set_state(agent::ActualRank::STATE_RUNNING);
    rank->mutable_status()->set_phase(telemetry::PHASE_TRAINING);
    Pass(absl::Seconds(1));
    ASSERT_EQ(job().state(), control::JOB_STATE_RUNNING);
  }

  void Pass(absl::Duration duration) {
    for (absl::Duration passed; passed < duration; passed += absl::Milliseconds(250)) {
      clock_.Advance(absl::Milliseconds(250));
      report_.set_applied_version(VersionOfEvent(shell_->state().num_events()));
      Round([&] { shell_->OnReport("n0", report_); });
    }
  }
  absl::StatusOr<control::Job> View(const std::string& job_id) const {
    return shell_->view()->Job(job_id, clock_.Wall());
  }
  std::vector<control::Job> Jobs() const { return shell_->view()->Jobs(clock_.Wall()); }
  // Adds a step to the report about the first job.
  void AddStep(int64_t step, int64_t attempt = 1) {
    auto* record = report_.mutable_jobs(0)->add_steps();
    record->set_step(step);
    record->set_attempt(attempt);
  }
  int64_t Acknowledged() const { return link_->last.jobs(0).acked_step(); }

  JobFiles* files_ = &RealJobFiles();
  const std::shared_ptr<KeepingLink> link_ = std::make_shared<KeepingLink>();
  agent::ActualState report_;
};

TEST_F(DriverShellTest, TheLogOfDecisionsKeepsSecrets) {
  base::InitLog("driver", base::LogLevel::kInfo);  // to standard error
  testing::internal::CaptureStderr();
  SimulatedDisk disk;
  Open(&disk);
  Run();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("driver_started"));
  EXPECT_THAT(log, HasSubstr("node_joined"));
  EXPECT_THAT(log, testing::Not(HasSubstr("secret")));
  EXPECT_THAT(log, testing::Not(HasSubstr("key:")));
}

TEST_F(DriverShellTest, StepsOfTheWallClockCauseNothing) {
  Run();
  const int64_t num_events = shell_->state().num_events();
  for (const absl::Duration step : {absl::Hours(5), -absl::Hours(9), absl::Hours(24 * 365),
                                    -absl::Hours(24 * 365), absl::Seconds(6), -absl::Seconds(6)}) {
    clock_.StepWall(step);
    Pass(absl::Seconds(3));
  }
  EXPECT_EQ(shell_->state().num_events(), num_events);
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
}

TEST_F(DriverShellTest, AJobShowsHowOldTheMeasurementOfItsCeilingIs) {
  Run();
  const control::Job shown = View("j").value();
  EXPECT_EQ(shown.flops_ceiling(), 2e11);
  EXPECT_NEAR(shown.flops_ceiling_age_seconds(), 5 * 3600, 10);
}

TEST_F(DriverShellTest, ThePeakOfDevicesIsACeilingWithoutAge) {
  Run(/*measured=*/false);
  const control::Job shown = View("j").value();
  EXPECT_EQ(shown.flops_ceiling(), 2e11);
  EXPECT_EQ(shown.flops_ceiling_age_seconds(), 0);
}

TEST_F(DriverShellTest, PeopleReadInWordsWhatAgentsReportAsIds) {
  Run();
  megascale::telemetry::SetDoing(
      {.activity = telemetry::ACTIVITY_INSTRUCTION,
       .instruction = plan::InstructionId(plan::OpKind::kReduceGradients, 1)},
      report_.mutable_jobs(0)->mutable_ranks(0)->mutable_status());
  Pass(absl::Seconds(1));
  const absl::StatusOr<control::Job> view = View("j");
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->ranks(0).status().doing(), "reduce-scatter of gradients R.c1");
}

TEST_F(DriverShellTest, AJobShowsTheDeviceOfARankAndItsMemory) {
  Run();
  telemetry::DeviceUse use;
  use.set_name("NVIDIA H100 80GB HBM3");
  use.set_used_bytes(61);
  use.set_memory_bytes(80);
  *report_.mutable_jobs(0)->mutable_ranks(0)->mutable_status()->mutable_device() = use;
  Pass(absl::Seconds(1));
  EXPECT_EQ(View("j")->ranks(0).status().device().SerializeAsString(), use.SerializeAsString());
}

TEST_F(DriverShellTest, AMachineThatWasSuspendedRecoversNothing) {
  Run();
  const int64_t num_events = shell_->state().num_events();
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(absl::Hours(10));  // as CLOCK_BOOTTIME counts; CLOCK_MONOTONIC stands still
    Round([] {});
    Pass(absl::Seconds(3));
  }
  EXPECT_EQ(shell_->state().num_events(), num_events);
}

TEST_F(DriverShellTest, ASecondAgentWithTheIdOfOneThatIsHeardIsRefusedAndTheJobGoesOn) {
  Run();
  const int64_t num_events = shell_->state().num_events();
  const auto second = std::make_shared<KeepingLink>();
  agent::Hello hello = HelloOf("n0", "b", 1);
  hello.set_key("another key");
  for (int i = 0; i < 5; ++i) {
    Round([&] { shell_->OnHello(hello, second); });
    EXPECT_EQ(second->closed.code(), absl::StatusCode::kAlreadyExists);
    Pass(absl::Seconds(2));
  }
  EXPECT_EQ(second->last.version(), 0) << "it was sent a desired state, with the jobs' secrets";
  EXPECT_TRUE(link_->closed.ok()) << link_->closed;
  EXPECT_EQ(job().attempt(), 1);
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
  EXPECT_EQ(shell_->state().num_events(), num_events);
}

TEST_F(DriverShellTest, TheSameKeyTakesOverAtOnceWhenTheFirstStreamHasEnded) {
  Run();
  shell_->OnGone("n0", link_.get());
  const auto second = std::make_shared<KeepingLink>();
  Round([&] { EXPECT_TRUE(shell_->OnHello(HelloOf("n0", "b", 1), second)); });
  EXPECT_GT(second->last.version(), 0);
  EXPECT_EQ(job().message(), "node n0: its agent was restarted, its processes died with it");
}

TEST_F(DriverShellTest, AnotherKeyIsTakenOnceTheFirstAgentIsLost) {
  Run();
  shell_->OnGone("n0", link_.get());
  const auto second = std::make_shared<KeepingLink>();
  agent::Hello hello = HelloOf("n0", "b", 1);
  hello.set_key("another key");
  Round([&] { EXPECT_FALSE(shell_->OnHello(hello, second)); });
  EXPECT_THAT(std::string(second->closed.message()), HasSubstr("went away a moment ago"));
  PassInSilence(absl::Seconds(6));
  Round([&] { EXPECT_TRUE(shell_->OnHello(hello, second)); });
  EXPECT_EQ(FindNode(shell_->state(), "n0")->hello().key(), "another key");
}

// A copy of its state directory on another machine could not be told from it.
TEST_F(DriverShellTest, ARebootedAgentIsTakenAfterOneNodeTimeout) {
  Run();
  shell_->OnGone("n0", link_.get());
  const auto second = std::make_shared<KeepingLink>();
  agent::Hello hello = HelloOf("n0", "b", 1);
  hello.set_machine_id("another boot/n0");
  Round([&] { EXPECT_FALSE(shell_->OnHello(hello, second)); });
  EXPECT_EQ(second->closed.code(), absl::StatusCode::kAlreadyExists);
  PassInSilence(FailureDetector::kNodeTimeout);
  Round([&] { EXPECT_TRUE(shell_->OnHello(hello, second)); });
  EXPECT_GT(second->last.version(), 0);
}

TEST_F(DriverShellTest, ADriverThatWasJustStartedLetsNobodyTakeTheIdOfAnAgentThatMayReport) {
  Run();
  shell_.reset();
  Open(&disk_);
  const auto second = std::make_shared<KeepingLink>();
  agent::Hello hello = HelloOf("n0", "b", 1);
  hello.set_key("another key");
  Round([&] { EXPECT_FALSE(shell_->OnHello(hello, second)); });
  EXPECT_THAT(std::string(second->closed.message()), HasSubstr("may still report to the driver"));
  Round([&] { EXPECT_TRUE(shell_->OnHello(HelloOf("n0", "a", 1), link_)); });
  Pass(absl::Seconds(8));
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
  EXPECT_EQ(job().attempt(), 1);
}

// An agent that joined without TLS, or before node ids were bound, is bound when it connects again.
TEST_F(DriverShellTest, ANodeIdIsBoundToTheCertificateThatItsAgentShows) {
  Run();
  EXPECT_EQ(FindNode(shell_->state(), "n0")->certificate(), "");
  const auto again = std::make_shared<KeepingLink>();
  again->shown = "agent-7";
  Round([&] { EXPECT_TRUE(shell_->OnHello(HelloOf("n0", "a", 1), again)); });
  EXPECT_EQ(FindNode(shell_->state(), "n0")->certificate(), "agent-7");
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
  const auto other = std::make_shared<KeepingLink>();
  other->shown = "agent-8";
  agent::Hello hello = HelloOf("n0", "b", 1);
  hello.set_key("another key");
  Round([&] { EXPECT_FALSE(shell_->OnHello(hello, other)); });
  EXPECT_EQ(other->closed.code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(DriverShellTest, ABackoffIsMonotonicTime) {
  Run();
  agent::ActualRank* rank = report_.mutable_jobs(0)->mutable_ranks(0);
  rank->set_state(agent::ActualRank::STATE_FAILED);
  rank->mutable_failure()->set_failure_class(telemetry::FAILURE_CLASS_EXITED);
  report_.mutable_jobs(0)->set_num_processes(0);
  Pass(absl::Milliseconds(500));
  ASSERT_EQ(job().stage(), pb::STAGE_BACKOFF);
  clock_.StepWall(absl::Hours(1));
  Round([] {});
  EXPECT_EQ(job().stage(), pb::STAGE_BACKOFF);
  clock_.StepWall(-absl::Hours(2));
  Pass(absl::Seconds(2));
  EXPECT_EQ(job().attempt(), 2);
}

TEST_F(DriverShellTest, WhatAnAgentHasReportedOfAnAttemptIsLeftOut) {
  ASSERT_TRUE(Submit("j").ok());
  Round([&] { shell_->OnHello(HelloOf("n0", "a", 1), link_); });
  const agent::DesiredJob full = link_->last.jobs(0);
  EXPECT_FALSE(full.as_before());
  ASSERT_EQ(full.placements_size(), 1);
  EXPECT_EQ(full.placements(0).num_ranks(), 1);
  EXPECT_FALSE(full.secret().empty());
  EXPECT_FALSE(full.checkpoint_directory().empty());

  report_.set_incarnation("a");
  report_.add_jobs()->set_job_id("j");
  Pass(absl::Seconds(1));  // it knows the job, but of another attempt
  EXPECT_EQ(link_->last.jobs(0).SerializeAsString(), full.SerializeAsString());

  report_.mutable_jobs(0)->set_attempt(1);
  Pass(absl::Seconds(1));
  agent::DesiredJob rest = full;
  rest.clear_spec();
  rest.clear_placements();
  rest.clear_secret();
  rest.clear_checkpoint_directory();
  rest.clear_owner();
  rest.set_as_before(true);
  EXPECT_EQ(link_->last.jobs(0).DebugString(), rest.DebugString());

  report_.clear_jobs();  // it gave the job up, and started anew
  Pass(absl::Seconds(1));
  EXPECT_EQ(link_->last.jobs(0).SerializeAsString(), full.SerializeAsString());
}

TEST_F(DriverShellTest, AJobThatAnOlderVersionTookHasWhatThatVersionDid) {
  SimulatedDisk older;
  const Event submitted = Submitted("j", SpecOf(1, 1, 2000));
  ASSERT_EQ(submitted.job_submitted().spec().optimizer().type(), 0);
  ASSERT_TRUE(older.OpenLog()->Append(0, {submitted}).ok());
  Open(&older);
  const auto& spec = job().submitted().spec();
  EXPECT_EQ(spec.optimizer().type(), job::v1::OPTIMIZER_TYPE_ADAMW);
  EXPECT_EQ(spec.parallel().virtual_pipeline_model_parallel_size(), 1);
  EXPECT_EQ(spec.parallel().pipeline_schedule(), job::v1::PIPELINE_SCHEDULE_1F1B);
  EXPECT_EQ(spec.device(), job::v1::DEVICE_CPU);
  // The same job submitted again, as this version resolves it.
  const int64_t num_events = shell_->state().num_events();
  EXPECT_EQ(Submit("j"), absl::OkStatus());
  EXPECT_EQ(shell_->state().num_events(), num_events);
}

TEST_F(DriverShellTest, AForgottenJobIsNotFoundAndItsIdIsNotGivenAgain) {
  for (const char* id : {"old", "new"}) {
    ASSERT_TRUE(Submit(id).ok());
    ASSERT_TRUE(View(id).ok());
    Cancel(id);
    clock_.Advance(absl::Minutes(1));
  }
  clock_.Advance(absl::Hours(1));
  Round([] {});
  EXPECT_EQ(View("old").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(View("new").ok());
  const absl::Status again = Submit("old");
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(
      std::string(again.message()),
      HasSubstr("/jobs/old belongs to an earlier job with this id, whose record the driver has "));
}

// --- pools --------------------------------------------------------------------------------------

TEST_F(DriverShellTest, ANodeThatIsForgottenInTheRoundOfARequestIsNotFound) {
  const auto pod = std::make_shared<KeepingLink>();
  Round([&] { EXPECT_TRUE(shell_->OnHello(HelloOf("pod", "x", 1), pod)); });
  shell_->OnGone("pod", pod.get());
  PassInSilence(absl::Seconds(20));
  ASSERT_FALSE(FindNode(shell_->state(), "pod")->alive());
  clock_.Advance(absl::Hours(25));
  absl::Status answer;
  Round([&] { EXPECT_TRUE(shell_->Uncordon("pod").ok()); },
        [&] { answer = shell_->view()->Node("pod").status(); });
  EXPECT_EQ(answer, absl::NotFoundError("node pod: was lost long ago; its record is deleted"));
}

TEST_F(DriverShellTest, AnAgentHasJoinedBeforeItIsToldAnything) {
  ASSERT_TRUE(Submit("j").ok());
  Round([&] { EXPECT_TRUE(shell_->OnHello(HelloOf("n0", "a", 1), link_)); },
        [&] { EXPECT_EQ(link_->last.version(), 0) << "it was told first"; });
  EXPECT_EQ(link_->last.jobs_size(), 1);
}

TEST_F(DriverShellTest, AQuarantineEndsOnceNoProcessIsLeftOrTheMachineIsLost) {
  for (const bool is_lost : {false, true}) {
    SimulatedDisk disk;
    Event quarantined;
    quarantined.mutable_node_quarantined()->set_node_id("n0");
    ASSERT_TRUE(disk.OpenLog()->Append(0, {Joined("n0", "a", 1), quarantined}).ok());
    Open(&disk);
    ASSERT_TRUE(FindNode(shell_->state(), "n0")->has_quarantine());
    absl::Status status;
    const auto uncordon = [&] { Round([&] { status = shell_->Uncordon("n0"); }); };
    uncordon();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("has not reported since"));
    Round([&] { EXPECT_TRUE(shell_->OnHello(HelloOf("n0", "a", 1), link_)); });
    uncordon();
    EXPECT_FALSE(status.ok()) << "it has joined, but not reported";
    report_ = {};
    report_.set_incarnation("a");
    report_.add_jobs()->set_job_id("gone");
    report_.mutable_jobs(0)->set_num_processes(2);
    Pass(absl::Seconds(1));
    uncordon();
    EXPECT_THAT(std::string(status.message()), HasSubstr("still has 2 processes"));
    if (is_lost) {
      shell_->OnGone("n0", link_.get());
      PassInSilence(absl::Seconds(20));
      ASSERT_FALSE(FindNode(shell_->state(), "n0")->alive());
    } else {
      report_.clear_jobs();
      Pass(absl::Seconds(1));
    }
    uncordon();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_FALSE(FindNode(shell_->state(), "n0")->has_quarantine());
  }
}

// --- a job's files are the job's ----------------------------------------------------------------

class JobFilesTest : public DriverShellTest {
 protected:
  void SetUp() override {
    files_ = &disk_;
    DriverShellTest::SetUp();
  }
  void AddManifest(int64_t step) {
    auto* manifest = report_.mutable_jobs(0)->add_manifests();
    manifest->set_attempt(1);
    manifest->set_step(step);
    manifest->set_directory(absl::StrCat(CheckpointDirectory(job()), "/step-", step));
  }
};

TEST_F(JobFilesTest, ALossLogThatFailsHoldsUpItsCommitsAndNothingElse) {
  Run();
  AddStep(1);
  Pass(absl::Seconds(1));
  ASSERT_EQ(Acknowledged(), 1);
  disk_.FailOn("jobs/j/metrics");
  AddStep(2);
  AddManifest(2);
  Pass(absl::Seconds(5));
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
  EXPECT_EQ(Acknowledged(), 1) << "the agent keeps it";
  EXPECT_EQ(job().committed_size(), 0) << "no checkpoint outlives the steps before it";
  EXPECT_TRUE(Submit("k").ok()) << "the driver serves others";
  disk_.FailOn("");
  Pass(absl::Seconds(2));
  EXPECT_EQ(Acknowledged(), 2);
  EXPECT_EQ(job().committed_size(), 1);
}

TEST_F(JobFilesTest, ACheckpointIsNotCommittedInTheRoundInWhichTheStepsBeforeItFail) {
  Run();
  AddStep(1);
  AddManifest(1);
  disk_.SetFaults(
      [](absl::string_view effect) {
        const bool fails =
            absl::StartsWith(effect, "sync ") && absl::StrContains(effect, "metrics");
        return fails ? SimulatedDisk::Fate::kFails : SimulatedDisk::Fate::kDone;
      },
      {});
  Pass(absl::Seconds(2));
  EXPECT_EQ(job().committed_size(), 0);
  disk_.FailOn("");
  Pass(absl::Seconds(2));
  EXPECT_EQ(job().committed_size(), 1);
}

TEST_F(JobFilesTest, ACutThatFailsAtFirstArchivesTheStepsThatWereRolledBack) {
  Run();
  for (int64_t step = 1; step <= 3; ++step) AddStep(step);
  Pass(absl::Seconds(1));
  ASSERT_EQ(Acknowledged(), 3);
  disk_.FailOn("metrics.attempt-1");
  agent::ActualRank* rank = report_.mutable_jobs(0)->mutable_ranks(0);
  rank->set_state(agent::ActualRank::STATE_FAILED);
  rank->mutable_failure()->set_failure_class(telemetry::FAILURE_CLASS_EXITED);
  report_.mutable_jobs(0)->set_num_processes(0);
  Pass(absl::Seconds(5));
  ASSERT_EQ(job().attempt(), 2);
  ASSERT_EQ(job().stage(), pb::STAGE_RUN);
  EXPECT_EQ(Acknowledged(), 0) << "the steps are taken again";
  disk_.FailOn("");
  Pass(absl::Seconds(3));
  const std::string archive =
      absl::StrCat(job().submitted().directory(), "/metrics.attempt-1.jsonl");
  ASSERT_TRUE(disk_.Exists(archive));
  const std::string lines = *disk_.ReadAt(archive, 0, *disk_.Size(archive));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);
  EXPECT_EQ(View("j")->last_step(), 0);
}

// A job that ends keeps what was known of its failure, its ranks and its machines.
TEST_F(JobFilesTest, AJobThatFailsKeepsItsEvidenceWhenItsMachineAndTheDriverAreGone) {
  Run();
  agent::ActualRank* rank = report_.mutable_jobs(0)->mutable_ranks(0);
  rank->mutable_status()->set_phase(telemetry::PHASE_TRAINING);
  rank->mutable_status()->set_step(7);
  AddStep(1);
  Pass(absl::Seconds(1));
  rank->set_state(agent::ActualRank::STATE_FAILED);
  rank->mutable_failure()->set_failure_class(telemetry::FAILURE_CLASS_DIVERGED);
  rank->mutable_failure()->set_message("loss of step 8 is not finite");
  report_.mutable_jobs(0)->add_warnings("an interface was lost");
  report_.mutable_jobs(0)->set_num_processes(0);
  Pass(absl::Seconds(3));
  ASSERT_EQ(job().state(), control::JOB_STATE_FAILED);
  ASSERT_TRUE(disk_.Exists(absl::StrCat(job().submitted().directory(), "/evidence.json")));
  shell_.reset();
  Open(&disk_);
  const control::Job seen = *View("j");
  EXPECT_THAT(seen.warnings(), ElementsAre("node n0: an interface was lost"));
  ASSERT_TRUE(seen.has_evidence());
  EXPECT_EQ(seen.evidence().culprit().evidence(), "loss of step 8 is not finite");
  EXPECT_EQ(seen.evidence().last_step(), 1);
  ASSERT_EQ(seen.evidence().ranks_size(), 1);
  ASSERT_EQ(seen.evidence().nodes_size(), 1);
  EXPECT_EQ(seen.evidence().nodes(0).node_id(), "n0");
  EXPECT_FALSE(Jobs()[0].has_evidence()) << "a list reads no files";
}

// Nothing under the state directory can be written: the driver ends, agents and workers go on.
TEST_F(JobFilesTest, AFullDiskUnderTheDriversStateEndsNoJob) {
  Run();
  AddStep(1);
  Pass(absl::Seconds(1));
  ASSERT_EQ(Acknowledged(), 1);
  disk_.SetFaults(
      [](absl::string_view effect) {
        return absl::StartsWith(effect, "open") ? SimulatedDisk::Fate::kDone
                                                : SimulatedDisk::Fate::kFails;
      },
      {});
  AddStep(2);
  Pass(absl::Seconds(2));
  EXPECT_EQ(Acknowledged(), 1) << "the agent keeps the step";
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
  const auto evict = [&] { EXPECT_TRUE(shell_->Evict(Evicted("n0", "").node_evicted()).ok()); };
  const auto answer = [] { ADD_FAILURE() << "was acknowledged and is not durable"; };
  EXPECT_FALSE(TryRound(evict, answer).ok());
  shell_.reset();
  disk_.Crash();
  disk_.FailOn("");  // somebody made room, and started the driver again
  Open(&disk_);
  Round([&] { shell_->OnHello(HelloOf("n0", "a", 1), link_); });
  Pass(absl::Seconds(2));
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
  EXPECT_EQ(job().attempt(), 1);
  EXPECT_EQ(Acknowledged(), 2);
}

TEST_F(JobFilesTest, EvidenceThatCannotBeWrittenEndsNoJobAndIsWrittenByTheNextDriver) {
  Run();
  disk_.FailOn("evidence");
  report_.mutable_jobs(0)->mutable_ranks(0)->set_state(agent::ActualRank::STATE_FAILED);
  report_.mutable_jobs(0)->mutable_ranks(0)->mutable_failure()->set_failure_class(
      telemetry::FAILURE_CLASS_DIVERGED);
  report_.mutable_jobs(0)->set_num_processes(0);
  Pass(absl::Seconds(3));
  ASSERT_EQ(job().state(), control::JOB_STATE_FAILED);
  EXPECT_FALSE(View("j")->has_evidence());
  disk_.FailOn("");
  shell_.reset();
  Open(&disk_);
  EXPECT_TRUE(View("j")->has_evidence());
}

TEST_F(JobFilesTest, ALossLogThatNeverWorksIsSetAsideAndTheJobGoesOn) {
  Run();
  disk_.FailOn("jobs/j/metrics");
  AddStep(1);
  AddManifest(1);
  Pass(JobLogs::kPatience + absl::Seconds(3));
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
  EXPECT_EQ(Acknowledged(), 1);
  EXPECT_EQ(job().committed_size(), 1);
  EXPECT_EQ(job().best_step(), 1);
  disk_.FailOn("");
  Pass(absl::Minutes(2));
  report_.mutable_jobs(0)->clear_steps();
  AddStep(2);
  Pass(absl::Seconds(2));
  EXPECT_EQ(Acknowledged(), 2);
  EXPECT_EQ(View("j")->last_record().step(), 2) << "with a gap";
}

TEST_F(JobFilesTest, AListOfJobsOpensNoLossLogOfAJobThatHasEnded) {
  constexpr int64_t kSteps = 1500;
  Run();
  for (int64_t step = 1; step <= kSteps; ++step) AddStep(step);
  Pass(absl::Seconds(1));
  Cancel("j");
  report_.mutable_jobs(0)->set_num_processes(0);
  report_.mutable_jobs(0)->clear_ranks();
  Pass(absl::Seconds(3));
  ASSERT_TRUE(IsTerminal(job())) << job().message();
  shell_.reset();
  Open(&disk_);
  EXPECT_FALSE(Jobs()[0].has_last_record()) << "thousands of them take seconds";
  EXPECT_EQ(View("j")->last_record().step(), kSteps);
}

TEST_F(JobFilesTest, ADamagedLossLogEndsNoLaterStartOfTheDriver) {
  Run();
  for (int64_t step = 1; step <= 5; ++step) AddStep(step);
  Pass(absl::Seconds(1));
  const std::string path = absl::StrCat(job().submitted().directory(), "/metrics.jsonl");
  disk_.Corrupt(path, *disk_.Size(path) / 2, std::string(150, '\0'));
  shell_.reset();
  Open(&disk_);
  Round([&] { EXPECT_TRUE(shell_->OnHello(HelloOf("n0", "a", 1), link_)); });
  report_.mutable_jobs(0)->clear_steps();
  AddStep(6);
  Pass(JobLogs::kGapPatience + absl::Seconds(1));
  EXPECT_EQ(Acknowledged(), 6);
  EXPECT_EQ(job().attempt(), 1);
}

TEST_F(JobFilesTest, ALossLogThatCannotBeOpenedEndsNoStartOfTheDriver) {
  Run();
  shell_.reset();
  disk_.FailOn("jobs/j/metrics");
  Open(&disk_);
  Round([&] { EXPECT_TRUE(shell_->OnHello(HelloOf("n0", "a", 1), link_)); });
  Pass(absl::Seconds(3));
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
  EXPECT_TRUE(View("j").ok());
}

// --- agents that must not be believed -----------------------------------------------------------

TEST_F(DriverShellTest, StepsCountOnlyFromAgentsThatHoldRanksOfTheAttempt) {
  Run();
  const auto other = std::make_shared<KeepingLink>();
  Round([&] { EXPECT_TRUE(shell_->OnHello(HelloOf("n1", "b", 1), other)); });
  agent::ActualState lie;
  lie.set_incarnation("b");
  agent::ActualJob* actual = lie.add_jobs();
  actual->set_job_id("j");
  actual->set_attempt(1);
  auto* record = actual->add_steps();
  record->set_step(30);
  record->set_attempt(1);
  auto* manifest = actual->add_manifests();
  manifest->set_attempt(1);
  manifest->set_step(30);
  manifest->set_directory(absl::StrCat(CheckpointDirectory(job()), "/step-30"));
  Round([&] { shell_->OnReport("n1", lie); });
  Pass(absl::Seconds(1));
  EXPECT_EQ(View("j")->last_step(), 0);
  EXPECT_EQ(job().best_step(), 0);
  EXPECT_EQ(job().committed_size(), 0);
  AddStep(1);
  Pass(absl::Seconds(1));
  EXPECT_EQ(View("j")->last_step(), 1);
}

TEST_F(DriverShellTest, ACheckpointOutsideOfTheJobsFolderIsNotCommitted) {
  Run();
  auto* manifest = report_.mutable_jobs(0)->add_manifests();
  manifest->set_attempt(1);
  manifest->set_step(3);
  manifest->set_directory("/somewhere/else");
  Pass(absl::Seconds(1));
  EXPECT_EQ(job().committed_size(), 0);
}

// --- epochs -------------------------------------------------------------------------------------

TEST_F(DriverShellTest, ADriverOnAnOldCopyStopsWhenAnAgentKnowsMore) {
  Run();
  SimulatedDisk copy;
  copy.ReplaceLog(disk_.durable_log());
  AddStep(1);
  Pass(absl::Seconds(1));
  report_.set_epoch(link_->last.epoch());
  report_.set_known_version(link_->last.version() + (int64_t{5} << 32));
  report_.set_known_proof(ProofOf(shell_->state(), report_.epoch(), report_.known_version()));
  Open(&copy);
  const auto report = [&] {
    shell_->OnHello(HelloOf("n0", "a", 1), link_);
    shell_->OnReport("n0", report_);
  };
  const absl::Status status = TryRound(report, [] {});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("megascale driver restore"));
}

TEST_F(DriverShellTest, AReportOfAnOlderEpochOnlyShowsThatTheAgentLives) {
  Run();
  report_.set_epoch(shell_->state().epoch() - 1);
  AddStep(1);
  report_.mutable_jobs(0)->mutable_ranks(0)->set_state(agent::ActualRank::STATE_FAILED);
  Pass(absl::Seconds(10));
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
  EXPECT_EQ(View("j")->last_step(), 0);
  EXPECT_TRUE(FindNode(shell_->state(), "n0")->alive());
  EXPECT_EQ(link_->last.epoch(), shell_->state().epoch());
  EXPECT_FALSE(link_->last.jobs(0).as_before()) << "it knows nothing of this epoch's attempt";
}

// --- what people see ----------------------------------------------------------------------------

TEST_F(DriverShellTest, OnlyAgesChangeWhileNothingHappens) {
  Run();
  AddStep(1);
  auto* manifest = report_.mutable_jobs(0)->add_manifests();
  manifest->set_attempt(1);
  manifest->set_step(1);
  manifest->set_directory(absl::StrCat(CheckpointDirectory(job()), "/step-1"));
  report_.mutable_jobs(0)->set_storage_error("disk full");
  Pass(absl::Seconds(2));
  const control::Job before = *View("j");
  report_.mutable_jobs(0)->mutable_ranks(0)->mutable_status()->set_alive_age_seconds(0.3);
  report_.mutable_jobs(0)->mutable_ranks(0)->mutable_status()->set_progress_age_seconds(1.3);
  Pass(absl::Seconds(3));
  const control::Job after = *View("j");
  EXPECT_NE(before.last_checkpoint().age_seconds(), after.last_checkpoint().age_seconds());
  EXPECT_EQ(WithoutAges(before).DebugString(), WithoutAges(after).DebugString());
  AddStep(2);
  Pass(absl::Seconds(1));
  EXPECT_NE(WithoutAges(after).DebugString(), WithoutAges(*View("j")).DebugString());
}

TEST_F(DriverShellTest, MachinesThatDoNotComeBackAreForgotten) {
  Run();
  for (int i = 1; i <= 5; ++i) {
    const auto pod = std::make_shared<KeepingLink>();
    const std::string id = absl::StrCat("pod-", i);
    Round([&] { EXPECT_TRUE(shell_->OnHello(HelloOf(id, "x", 1), pod)); });
    shell_->OnGone(id, pod.get());
  }
  Pass(absl::Seconds(10));
  ASSERT_EQ(shell_->state().nodes_size(), 6);
  clock_.StepWall(absl::Hours(25));
  Pass(absl::Minutes(2));
  EXPECT_EQ(shell_->state().nodes_size(), 6) << "a step of the wall clock is no time";
  clock_.Advance(absl::Hours(25));
  Pass(absl::Minutes(2));
  EXPECT_EQ(shell_->state().nodes_size(), 1);
  EXPECT_EQ(shell_->view()->Nodes().nodes_size(), 1);
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
}

// --- views --------------------------------------------------------------------------------------

TEST_F(DriverShellTest, AnAnswerTellsNothingThatReadersDoNotSee) {
  Run();
  bool seen = false;
  const auto submit = [&] {
    EXPECT_TRUE(shell_->Submit(Submitted("k", SpecOf(1, 1, 30)).job_submitted()).ok());
    EXPECT_EQ(View("k").status().code(), absl::StatusCode::kNotFound) << "it is not durable yet";
  };
  Round(submit, [&] { seen = View("k").ok() && View("k")->queue_position() == 1; });
  EXPECT_TRUE(seen);
}

TEST_F(DriverShellTest, AViewStaysAsItIsAndSharesWhatDoesNotChange) {
  Run();
  ASSERT_TRUE(Submit("k").ok());
  AddStep(1);
  Pass(absl::Seconds(1));
  const auto before = shell_->view();
  int64_t position = -1;
  EXPECT_TRUE(before->StepsSince("j", &position).empty());
  for (int64_t step = 2; step <= 40; ++step) AddStep(step);
  Pass(absl::Seconds(1));
  Cancel("k");
  const auto after = shell_->view();
  EXPECT_EQ(before->Job("j", clock_.Wall())->last_step(), 1);
  EXPECT_EQ(before->Record("k")->state(), control::JOB_STATE_PENDING);
  EXPECT_EQ(after->Record("k")->state(), control::JOB_STATE_CANCELLED);
  EXPECT_EQ(after->Record("j"), before->Record("j")) << "steps alone do not copy the record";
  const auto steps = after->StepsSince("j", &position);
  ASSERT_EQ(steps.size(), 39u);
  EXPECT_EQ(steps.front().step(), 2);
  EXPECT_EQ(steps.back().step(), 40);
}

TEST_F(JobFilesTest, AJobThatHasEndedKeepsNoLossLogOpenAndItsLastStepsAreStillSeen) {
  Run();
  for (int64_t step = 1; step <= 30; ++step) AddStep(step);
  Pass(absl::Seconds(1));
  EXPECT_EQ(shell_->num_loss_logs(), 1u);
  const auto watched = shell_->view();
  int64_t position = -1;
  watched->StepsSince("j", &position);
  AddStep(31);
  report_.mutable_jobs(0)->mutable_ranks(0)->set_state(agent::ActualRank::STATE_FAILED);
  report_.mutable_jobs(0)->mutable_ranks(0)->mutable_failure()->set_failure_class(
      telemetry::FAILURE_CLASS_DIVERGED);
  report_.mutable_jobs(0)->set_num_processes(0);
  Pass(absl::Seconds(3));
  ASSERT_TRUE(IsTerminal(job())) << job().message();
  EXPECT_EQ(shell_->num_loss_logs(), 0u);
  EXPECT_EQ(shell_->view()->StepsSince("j", &position).size(), 1u) << "a watcher missed the end";
  report_.clear_jobs();
  Pass(absl::Minutes(2));
  EXPECT_EQ(View("j")->last_record().step(), 31) << "from the file";
  EXPECT_EQ(Jobs()[0].last_record().step(), 31) << "from memory";
}

}  // namespace
}  // namespace megascale::driver
