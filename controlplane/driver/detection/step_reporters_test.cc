#include "controlplane/driver/detection/step_reporters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controlplane/driver/detection/testing/test_agents.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A record of a job of this layout, with the nodes of its ranks in order.
JobRecord Placed(int data, int pipeline, const std::vector<std::string>& nodes) {
  JobRecord job;
  job.mutable_submitted()->set_job_id("j");
  *job.mutable_submitted()->mutable_spec() = SpecOf(data, pipeline, 30);
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    agent::Placement* placement = job.add_placements();
    placement->set_rank(static_cast<int>(rank));
    placement->set_node_id(nodes[rank]);
  }
  return job;
}

TEST(KeepersTest, TheFirstRankOfTheLastStageNamesTheReporterAndTheNextNodeTheDeputy) {
  using Keepers = StepReporters::Keepers;
  EXPECT_EQ(StepReporters::KeepersOf(Placed(2, 2, {"a", "b", "c", "d"})), (Keepers{"c", "d"}));
  EXPECT_EQ(StepReporters::KeepersOf(Placed(1, 4, {"a", "b", "c", "d"})), (Keepers{"d", "a"}));
  EXPECT_EQ(StepReporters::KeepersOf(Placed(4, 1, {"a", "a", "b", "b"})), (Keepers{"a", "b"}));
  EXPECT_EQ(StepReporters::KeepersOf(Placed(1, 2, {"a", "a"})), (Keepers{"a", ""}));
  EXPECT_EQ(StepReporters::KeepersOf(Placed(1, 1, {})), (Keepers{"", ""}));
}

// Ranks 0 and 1 are on n0, ranks 2 and 3, the last stage, on n1.
class StepReportersTest : public AgentMonitorTest {
 protected:
  void SetUp() override {
    AgentMonitorTest::SetUp();
    Train();
  }
  agent::StepDuty Duty(const std::string& node_id) {
    return monitor_.step_reporters().DutyOf(job(), node_id);
  }
  void Complete(int64_t step) {
    for (int rank = 0; rank < 4; ++rank) RankOf(rank)->mutable_status()->set_step(step);
  }
  void AddSteps(const std::string& node_id, int64_t newest) {
    JobOn(node_id)->clear_steps();
    for (int64_t step = 1; step <= newest; ++step) {
      auto* record = JobOn(node_id)->add_steps();
      record->set_step(step);
      record->set_attempt(job().attempt());
    }
  }
  std::set<std::string> TakeChanged() { return monitor_.step_reporters().TakeChanged(); }
};

TEST_F(StepReportersTest, OneAgentReportsAndNothingChangesWhileItDoes) {
  EXPECT_EQ(Duty("n1"), agent::STEP_DUTY_REPORT);
  EXPECT_EQ(Duty("n0"), agent::STEP_DUTY_KEEP);
  EXPECT_EQ(Duty("n2"), agent::STEP_DUTY_NONE);
  for (int64_t step = 1; step <= 5; ++step) {
    Complete(step);
    AddSteps("n1", step);
    Pass(absl::Seconds(1));
  }
  Pass(absl::Seconds(30));  // a long step
  EXPECT_EQ(Duty("n1"), agent::STEP_DUTY_REPORT);
  EXPECT_THAT(TakeChanged(), IsEmpty());
}

TEST_F(StepReportersTest, TheDeputyReportsOnceStepsWaitForTheReporter) {
  Complete(1);
  AddSteps("n1", 1);
  Pass(absl::Seconds(1));
  const agent::ActualState silent = reports_["n1"];
  reports_.erase("n1");
  RankOf(0)->mutable_status()->set_step(2);
  Pass(absl::Milliseconds(500));
  EXPECT_EQ(Duty("n1"), agent::STEP_DUTY_REPORT) << "the report may be on its way";
  Pass(absl::Seconds(1));
  EXPECT_EQ(Duty("n1"), agent::STEP_DUTY_KEEP);
  EXPECT_EQ(Duty("n0"), agent::STEP_DUTY_REPORT);
  EXPECT_THAT(TakeChanged(), ElementsAre("n0", "n1"));
  AddSteps("n0", 2);
  Pass(absl::Seconds(1));
  reports_["n1"] = silent;  // it is back: the deputy goes on
  Complete(3);
  AddSteps("n0", 3);
  Pass(absl::Seconds(3));
  EXPECT_EQ(Duty("n0"), agent::STEP_DUTY_REPORT);
  EXPECT_THAT(TakeChanged(), IsEmpty());
}

// The agent lives, and repeats an old report: its thread is held up.
TEST_F(StepReportersTest, AnAgentThatRepeatsAnOldReportIsReplaced) {
  Complete(1);
  AddSteps("n1", 1);
  Pass(absl::Seconds(1));
  RankOf(0)->mutable_status()->set_step(4);
  Pass(absl::Seconds(2));
  EXPECT_EQ(Duty("n0"), agent::STEP_DUTY_REPORT);
}

TEST_F(StepReportersTest, IfTheDeputyIsSilentTooTheyTakeTurns) {
  Complete(1);
  Pass(absl::Seconds(2));
  EXPECT_EQ(Duty("n0"), agent::STEP_DUTY_REPORT);
  Pass(absl::Seconds(1));
  EXPECT_EQ(Duty("n1"), agent::STEP_DUTY_REPORT);
}

// A driver that was started again knows from the loss log what was reported.
TEST_F(StepReportersTest, StepsThatTheLossLogHasWaitForNobody) {
  monitor_.NoteStep("j", 7);
  Complete(7);
  Pass(absl::Seconds(5));
  EXPECT_EQ(Duty("n1"), agent::STEP_DUTY_REPORT);
  EXPECT_THAT(TakeChanged(), IsEmpty());
  monitor_.NoteStep("j", 4);  // a rollback
  Pass(absl::Seconds(2));
  EXPECT_EQ(Duty("n0"), agent::STEP_DUTY_REPORT);
}

// Steps may be shorter than the way of a report.
TEST_F(StepReportersTest, AReporterThatLagsButGoesOnKeepsItsDuty) {
  for (int64_t step = 1; step <= 20; ++step) {
    monitor_.NoteStep("j", step);
    Complete(step + 1);
    Pass(absl::Milliseconds(500));
  }
  EXPECT_EQ(Duty("n1"), agent::STEP_DUTY_REPORT);
  EXPECT_THAT(TakeChanged(), IsEmpty());
}

TEST_F(StepReportersTest, AcknowledgementsGoToTheKeepersAndToAgentsThatReportSteps) {
  EXPECT_THAT(monitor_.step_reporters().NodesWithSteps(job()), ElementsAre("n0", "n1"));
  EXPECT_TRUE(monitor_.step_reporters().HasSteps(job(), "n0"));
  EXPECT_FALSE(monitor_.step_reporters().HasSteps(job(), "n2"));
  agent::ActualJob of_older_version;
  of_older_version.set_attempt(1);
  of_older_version.add_steps()->set_step(1);
  monitor_.step_reporters().OnReport(job(), "n2", of_older_version, absl::Seconds(1));
  EXPECT_TRUE(monitor_.step_reporters().HasSteps(job(), "n2"));
  of_older_version.clear_steps();
  monitor_.step_reporters().OnReport(job(), "n2", of_older_version, absl::Seconds(1));
  EXPECT_FALSE(monitor_.step_reporters().HasSteps(job(), "n2"));
}

}  // namespace
}  // namespace megascale::driver
