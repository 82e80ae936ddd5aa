// What people see of a job's loss log: the numbers that are off the road.
#include "controlplane/driver/shell/job_view.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "controlplane/driver/core/testing/test_events.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;
namespace telemetry = megascale::telemetry::v1;

class JobViewTest : public ::testing::Test {
 protected:
  JobViewTest() {
    *job_.mutable_submitted() = Submitted("j", SpecOf(1, 1, 400)).job_submitted();
    job_.set_attempt(1);
    job_.set_stage(v1::STAGE_RUN);
  }

  // Adds steps of about the same loss and norm, at 1,000 tokens per second.
  void Run(int count, double seconds = 1) {
    for (int i = 0; i < count; ++i) {
      telemetry::StepRecord record;
      record.set_step(static_cast<int64_t>(steps_.size()) + 1);
      record.set_loss(2 + 0.01 * (i % 7));
      record.set_grad_norm(0.5 + 0.1 * (i % 5));
      record.set_tokens(1000);
      record.set_seconds(seconds);
      record.set_attempt(1);
      steps_.push_back(record);
    }
  }

  // Places a rank on each of n0, n1 and n2, which report its attempt; `reports` is what they say.
  JobSources PlaceOnThreeNodes(std::map<std::string, megascale::agent::v1::ActualJob>* reports) {
    for (const char* node : {"n0", "n1", "n2"}) {
      job_.add_placements()->set_node_id(node);
      job_.mutable_placements()->rbegin()->set_rank(job_.placements_size() - 1);
      (*reports)[node].set_attempt(1);
    }
    JobSources sources;
    sources.now = absl::FromUnixSeconds(1000);
    sources.node = [](const std::string&) { return nullptr; };
    sources.report = [reports](const std::string& node_id) { return &(*reports)[node_id]; };
    return sources;
  }

  std::vector<control::NumberWarning> Warnings(bool is_summary = false) const {
    RecentSteps recent;
    for (const telemetry::StepRecord& step : steps_) recent.Append(step);
    JobSources sources;
    sources.now = absl::FromUnixSeconds(1000);
    sources.steps = &recent;
    sources.is_summary = is_summary;
    sources.node = [](const std::string&) { return nullptr; };
    sources.report = [](const std::string&) { return nullptr; };
    const control::Job view = ViewJob(job_, sources);
    return {view.number_warnings().begin(), view.number_warnings().end()};
  }

  JobRecord job_;
  std::vector<telemetry::StepRecord> steps_;
};

TEST_F(JobViewTest, ACalmJobHasNoWarning) {
  Run(200);
  EXPECT_TRUE(Warnings().empty());
}

TEST_F(JobViewTest, ALossAndANormThatJumpAreShownWithWhatIsUsual) {
  Run(100);
  steps_[90].set_loss(11);
  steps_[95].set_grad_norm(7);
  const std::vector<control::NumberWarning> warnings = Warnings();
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_EQ(warnings[0].kind(), control::NumberWarning::KIND_LOSS_JUMP);
  EXPECT_EQ(warnings[0].step(), 91);
  EXPECT_DOUBLE_EQ(warnings[0].value(), 11);
  EXPECT_NEAR(warnings[0].usual(), 2.03, 0.03);
  EXPECT_NE(warnings[0].message().find("step 91"), std::string::npos) << warnings[0].message();
  EXPECT_EQ(warnings[1].kind(), control::NumberWarning::KIND_GRADIENT_JUMP);
  EXPECT_EQ(warnings[1].step(), 96);
  EXPECT_NE(warnings[1].message(), warnings[0].message());
}

TEST_F(JobViewTest, AnMfuThatDeclinesIsShownWithTheStepFromWhich) {
  Run(128);
  Run(64, 1.25);
  const std::vector<control::NumberWarning> warnings = Warnings();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].kind(), control::NumberWarning::KIND_SLOWER);
  EXPECT_EQ(warnings[0].message(),
            "MFU has declined since step 129: 800 tokens/s, usually 1000 (80 %)");
}

TEST_F(JobViewTest, AJobInItsFirstMinuteIsNotCalledSlow) {
  Run(128);
  Run(64, 1.25);
  steps_[190].set_loss(100);
  for (const int64_t age : {59, 60}) {
    job_.set_started_unix_nanos((1000 - age) * 1'000'000'000);
    std::vector<control::NumberWarning::Kind> kinds;
    for (const control::NumberWarning& warning : Warnings()) kinds.push_back(warning.kind());
    std::vector<control::NumberWarning::Kind> expected = {control::NumberWarning::KIND_LOSS_JUMP};
    if (age >= 60) expected.push_back(control::NumberWarning::KIND_SLOWER);
    EXPECT_EQ(kinds, expected) << age;
  }
}

TEST_F(JobViewTest, TheRateLeavesOutTheFirstStepOfTheAttempt) {
  const auto rate = [this] {
    RecentSteps recent;
    for (const telemetry::StepRecord& step : steps_) recent.Append(step);
    JobSources sources;
    sources.now = absl::FromUnixSeconds(1000);
    sources.steps = &recent;
    sources.node = [](const std::string&) { return nullptr; };
    sources.report = [](const std::string&) { return nullptr; };
    return ViewJob(job_, sources).tokens_per_second();
  };
  Run(1, 50);
  EXPECT_DOUBLE_EQ(rate(), 20);
  Run(1);
  EXPECT_DOUBLE_EQ(rate(), 1000);
  Run(30, 2);
  EXPECT_DOUBLE_EQ(rate(), 500);
  job_.set_attempt(2);
  EXPECT_DOUBLE_EQ(rate(), 0);
  Run(1, 4);
  steps_.back().set_attempt(2);
  EXPECT_DOUBLE_EQ(rate(), 250);
}

// A step with a number that is not finite is never logged: the attempt ends, and its failure says
// where the number came from.
TEST_F(JobViewTest, ANumberThatIsNotFiniteIsShownWithItsOperator) {
  Run(10);
  job_.set_best_step(10);
  job_.mutable_culprit()->set_failure_class(telemetry::FAILURE_CLASS_DIVERGED);
  job_.mutable_culprit()->set_evidence("layer 3, attention: the output is NaN\nmore of the log");
  const std::vector<control::NumberWarning> warnings = Warnings();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].kind(), control::NumberWarning::KIND_NOT_FINITE);
  EXPECT_EQ(warnings[0].step(), 11);
  EXPECT_NE(warnings[0].message().find("layer 3, attention: the output is NaN"), std::string::npos)
      << warnings[0].message();
  EXPECT_EQ(warnings[0].message().find("more of the log"), std::string::npos);
}

// The one that has been silent for longest.
TEST_F(JobViewTest, TheMachineWhoseProcessKeeperIsSilentIsShown) {
  std::map<std::string, megascale::agent::v1::ActualJob> reports;
  const JobSources sources = PlaceOnThreeNodes(&reports);
  EXPECT_FALSE(ViewJob(job_, sources).has_silent_keeper());
  reports["n0"].set_keeper_silent_seconds(6);
  reports["n1"].set_keeper_silent_seconds(9);
  reports["n2"].set_keeper_silent_seconds(50);
  reports["n2"].set_attempt(0);  // it has not begun this attempt
  const control::Job view = ViewJob(job_, sources);
  EXPECT_EQ(view.silent_keeper().node_id(), "n1");
  EXPECT_EQ(view.silent_keeper().seconds(), 9);
  EXPECT_EQ(WithoutAges(view).silent_keeper().seconds(), 0) << "watchers are told of no age";
}

TEST_F(JobViewTest, RanksThatAreLeftOutAreCountedWithTheirDevices) {
  std::map<std::string, megascale::agent::v1::ActualJob> reports;
  const JobSources sources = PlaceOnThreeNodes(&reports);
  for (int rank = 0; rank < 3; ++rank) {
    auto* status = reports[absl::StrCat("n", rank)].add_ranks()->mutable_status();
    status->set_rank(rank);
    status->mutable_device()->set_name(rank == 1 ? "cpu" : "NVIDIA H100");
    status->set_progress_age_seconds(rank == 2 ? 60 : 0);
  }
  control::Job view = ViewJob(job_, sources);
  ASSERT_EQ(view.device_kinds_size(), 2);
  EXPECT_EQ(view.device_kinds(0).name(), "NVIDIA H100");
  EXPECT_EQ(view.device_kinds(0).num_ranks(), 2);
  EXPECT_EQ(view.device_kinds(1).num_ranks(), 1);
  ShortenRanks(3, &view);
  EXPECT_EQ(view.ranks_size(), 3);
  ShortenRanks(2, &view);
  ASSERT_EQ(view.ranks_size(), 2);
  EXPECT_EQ(view.ranks(0).node_id(), "n0");
  EXPECT_EQ(view.ranks(1).node_id(), "n2") << "it stands still";
  EXPECT_EQ(view.num_ranks(), 3);
}

// A preflight may encode text for minutes: `status` says which machine is at it, and how far.
TEST_F(JobViewTest, TheProgressOfAMachineThatTokenizesIsTheJobsMessage) {
  using megascale::agent::v1::Preflight;
  job_.set_stage(v1::STAGE_PREFLIGHT);
  std::map<std::string, megascale::agent::v1::ActualJob> reports;
  const JobSources sources = PlaceOnThreeNodes(&reports);
  const std::string before = ViewJob(job_, sources).message();
  Preflight& passed = *reports["n0"].mutable_preflight();
  passed.set_state(Preflight::STATE_PASSED);
  passed.set_message("tokenizing /data/text: 99 %");
  Preflight& running = *reports["n1"].mutable_preflight();
  running.set_state(Preflight::STATE_RUNNING);
  EXPECT_EQ(ViewJob(job_, sources).message(), before) << "it has said nothing yet";
  running.set_message("tokenizing /data/text: 41 %");
  EXPECT_EQ(ViewJob(job_, sources).message(), "tokenizing /data/text: 41 % on n1");
  reports["n1"].set_attempt(0);  // what it says is about an attempt before this one
  EXPECT_EQ(ViewJob(job_, sources).message(), before);
}

TEST_F(JobViewTest, AnEndedJobSaysAtWhichStepItBegan) {
  JobSources sources;
  sources.now = absl::FromUnixSeconds(1000);
  sources.node = [](const std::string&) { return nullptr; };
  sources.report = [](const std::string&) { return nullptr; };
  job_.set_first_step(1000);  // submitted from a checkpoint
  job_.mutable_restore()->set_step(1000);
  job_.mutable_time_book()->set_kept_step(1000);
  job_.set_stage(v1::STAGE_ENDED);
  job_.set_state(control::JOB_STATE_CANCELLED);
  const control::Job view = ViewJob(job_, sources);
  EXPECT_EQ(view.first_step(), 1000);
  EXPECT_EQ(view.last_step(), 1000);
}

TEST_F(JobViewTest, AFailureOfAnotherKindIsNoWarningOfNumbers) {
  Run(10);
  job_.mutable_culprit()->set_failure_class(telemetry::FAILURE_CLASS_EXITED);
  EXPECT_TRUE(Warnings().empty());
}

}  // namespace
}  // namespace megascale::driver
