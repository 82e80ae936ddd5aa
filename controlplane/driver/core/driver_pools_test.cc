// Which machines a job may use, and whose fault a failure is.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/recovery.h"
#include "controlplane/driver/core/testing/test_core.h"

namespace megascale::driver {
namespace {

using megascale::agent::v1::DesiredJob;
using megascale::telemetry::v1::FAILURE_CLASS_EXITED;

Event SpareSet(const std::string& node_id, bool spare) {
  Event event;
  event.mutable_node_spare_set()->set_node_id(node_id);
  event.mutable_node_spare_set()->set_spare(spare);
  return event;
}

Event Refused(int64_t attempt, const std::string& node_id, const std::string& message) {
  Event event;
  auto* refused = event.mutable_preflight_refused();
  refused->set_job_id("j");
  refused->set_attempt(attempt);
  refused->set_node_id(node_id);
  refused->set_message(message);
  return event;
}

class DriverPoolsTest : public DriverCoreTest {
 protected:
  const NodeRecord& Node(const std::string& node_id) const { return *FindNode(state_, node_id); }
  // Job "j" runs on n0 and n1 and has a checkpoint; then n1 is lost.
  void RunAndLose(const std::string& spare = "") {
    Run();
    Do(Manifest(1, 10));
    Do(Progressed(1, 10));
    if (!spare.empty()) Do(Joined(spare, "a", 2));
    Do(Lost("n1", "a"));
    Do(Fenced(1, "n0", {}));
  }
  void Time(v1::Stage stage) {
    Event event;
    event.mutable_stage_timed_out()->set_job_id("j");
    event.mutable_stage_timed_out()->set_attempt(job().attempt());
    event.mutable_stage_timed_out()->set_stage(stage);
    seconds_ += absl::ToInt64Seconds(kFenceTimeout);
    Do(event);
  }
};

// --- preflight of machines that take over -------------------------------------------------------

TEST_F(DriverPoolsTest, AMachineThatTakesOverPassesThePreflightFirst) {
  RunAndLose("n2");
  EXPECT_EQ(PlacedNodes(), (std::vector<std::string>{"n0", "n0", "n2", "n2"}));
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
  EXPECT_EQ(Desired("n2").phase(), DesiredJob::PHASE_PREFLIGHT);
  EXPECT_EQ(Desired("n0").phase(), DesiredJob::PHASE_PREFLIGHT) << "it writes the nonce";
  EXPECT_EQ(Desired("n0").restore().step(), 10) << "it keeps the steps up to the restore point";
  Do(Passed("j", 2, "n2"));
  EXPECT_EQ(job().stage(), v1::STAGE_RUN);
  EXPECT_EQ(job().restore().step(), 10);
}

TEST_F(DriverPoolsTest, AnAttemptOnTheSameAgentsNeedsNoPreflight) {
  Run();
  KillRank(1);
  BackoffElapsed(1);
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_EQ(job().stage(), v1::STAGE_RUN);
}

TEST_F(DriverPoolsTest, AnAgentThatWasStartedAgainPassesAgain) {
  Run();
  Do(Progressed(1, 1));
  Do(Joined("n1", "b", 2));
  Do(Fenced(1, "n0", {}));
  Do(Fenced(1, "n1", {}));
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
  Do(Passed("j", 2, "n1"));
  EXPECT_EQ(job().stage(), v1::STAGE_RUN);
}

TEST_F(DriverPoolsTest, SnapshotsInMemoryOutliveThePreflight) {
  Run();
  Do(Progressed(1, 7));
  Do(Joined("n1", "b", 2));
  Do(Fenced(1, "n0", {{0, 7}, {1, 7}}));
  Do(Fenced(1, "n1", {{2, 7}, {3, 7}}));
  ASSERT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
  Do(Passed("j", 2, "n1"));
  EXPECT_EQ(job().restore().source(), megascale::agent::v1::RestorePoint::SOURCE_MEMORY);
  EXPECT_EQ(job().restore().step(), 7);
}

TEST_F(DriverPoolsTest, AMachineThatRefusesIsLeftAndTheJobGoesOn) {
  RunAndLose("n2");
  Do(Refused(2, "n2", "data.files: /data is empty"));
  EXPECT_EQ(job().stage(), v1::STAGE_FENCE);
  Do(Fenced(2, "n0", {}));
  Do(Fenced(2, "n2", {}));
  EXPECT_EQ(job().stage(), v1::STAGE_WAIT_FOR_SLOTS);
  EXPECT_TRUE(absl::StrContains(job().message(), "n2 refuses the job")) << job().message();
  EXPECT_TRUE(absl::StrContains(job().culprit().evidence(), "/data is empty"));
  EXPECT_EQ(job().attempts_without_progress(), 0);
  Do(Joined("n3", "a", 2));
  EXPECT_EQ(PlacedNodes(), (std::vector<std::string>{"n0", "n0", "n3", "n3"}));
  Do(Passed("j", 3, "n3"));
  EXPECT_EQ(job().stage(), v1::STAGE_RUN);
  EXPECT_EQ(job().restore().step(), 10);
}

TEST(RefusalTest, IsKnownByItsAttemptAndInOlderSnapshotsByItsText) {
  JobRecord job;
  job.set_attempt(2);
  job.mutable_culprit()->set_node_id("n2");
  job.mutable_culprit()->set_rank(-1);
  job.mutable_culprit()->set_failure_class(megascale::telemetry::v1::FAILURE_CLASS_REFUSED);
  job.mutable_culprit()->set_attempt(2);
  job.mutable_culprit()->set_evidence("refused: /data is empty; see the log");
  auto* refusing = job.add_refusing();
  refusing->set_node_id("n2");
  refusing->set_message("/data is empty");
  refusing->set_attempt(2);
  EXPECT_TRUE(WasRefusedByNode(job));
  job.mutable_culprit()->set_attempt(3);
  job.mutable_culprit()->set_evidence("/data is empty");
  EXPECT_FALSE(WasRefusedByNode(job)) << "another attempt";
  refusing->clear_attempt();
  EXPECT_TRUE(WasRefusedByNode(job));
  job.mutable_culprit()->set_evidence("train.steps: 3 is not more than the 5 steps");
  EXPECT_FALSE(WasRefusedByNode(job)) << "another reason";
}

// An older driver knew no attempt of a refusal, and its log must lead to what it decided.
TEST_F(DriverPoolsTest, ARefusalNamesItsAttemptFromRules7) {
  for (const int rules : {6, 7}) {
    state_.Clear();
    events_.clear();
    states_.clear();
    SetUp();
    Event started;
    started.mutable_driver_started()->set_rules(rules);
    Do(started);
    RunAndLose("n2");
    Do(Refused(2, "n2", "/data is empty"));
    ASSERT_EQ(job().refusing_size(), 1);
    EXPECT_EQ(job().refusing(0).attempt(), rules < 7 ? 0 : 2);
  }
}

TEST_F(DriverPoolsTest, ARefusalIsForgottenWhenThatAgentStartsAgainOrIsUncordoned) {
  for (const bool uncordon : {true, false}) {
    state_.Clear();
    events_.clear();
    states_.clear();
    SetUp();
    RunAndLose("n2");
    Do(Refused(2, "n2", "data.files: /data is empty"));
    Do(Fenced(2, "n0", {}));
    Do(Fenced(2, "n2", {}));
    EXPECT_TRUE(Do(uncordon ? Uncordoned("n2") : Joined("n2", "b", 2)));
    if (!uncordon) Do(Fenced(2, "n2", {}));
    EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT) << uncordon;
    EXPECT_EQ(job().attempt(), 3);
  }
}

TEST_F(DriverPoolsTest, AMachineThatHasOtherDataIsLeft) {
  Run();
  Do(Progressed(1, 1));
  Do(Joined("n2", "a", 2));
  Do(Lost("n1", "a"));
  Do(Fenced(1, "n0", {}));
  Event passed = Passed("j", 2, "n2");
  passed.mutable_preflight_passed()->mutable_preflight()->mutable_data()->add_file_sha256("other");
  Do(passed);
  EXPECT_EQ(job().stage(), v1::STAGE_FENCE);
  EXPECT_EQ(job().culprit().node_id(), "n2");
}

TEST_F(DriverPoolsTest, WhatThreeMachinesRefuseIsTheJobsFault) {
  RunAndLose("n2");
  int64_t attempt = 2;
  for (const std::string node : {"n2", "n3", "n4"}) {
    if (node != "n2") Do(Joined(node, "a", 2));
    Do(Refused(attempt, node, "data.files: /data is empty"));
    Do(Fenced(attempt, "n0", {}));
    Do(Fenced(attempt, node, {}));
    ++attempt;
  }
  EXPECT_EQ(job().state(), megascale::control::v1::JOB_STATE_FAILED);
  EXPECT_EQ(job().reason(), "Refused");
}

// Whoever has one certificate can make three nodes.
TEST_F(DriverPoolsTest, WhatNodesOfOneCertificateRefuseIsNotTheJobsFault) {
  RunAndLose();
  int64_t attempt = 2;
  for (const std::string node : {"n2", "n3", "n4"}) {
    Event joined = Joined(node, "a", 2);
    joined.mutable_node_joined()->set_certificate("thief");
    Do(joined);
    Do(Refused(attempt, node, "data.files: /data is empty"));
    Do(Fenced(attempt, "n0", {}));
    Do(Fenced(attempt++, node, {}));
  }
  EXPECT_EQ(job().stage(), v1::STAGE_WAIT_FOR_SLOTS) << job().message();
}

TEST_F(DriverPoolsTest, AMachineThatRefusesWhatItRanBeforeEndsAJobThatHasNoOther) {
  Run();
  Do(Progressed(1, 1));
  Do(Joined("n1", "b", 2));
  Do(Fenced(1, "n0", {}));
  Do(Fenced(1, "n1", {}));
  Do(Refused(2, "n1", "data.files: /data is empty"));
  Do(Fenced(2, "n0", {}));
  Do(Fenced(2, "n1", {}));
  EXPECT_EQ(job().state(), megascale::control::v1::JOB_STATE_FAILED);
  EXPECT_TRUE(absl::StrContains(job().message(), "/data is empty")) << job().message();
}

// --- spares -------------------------------------------------------------------------------------

TEST_F(DriverPoolsTest, ASpareGetsNoRanksOfAJobThatStarts) {
  Do(Submitted("j", SpecOf(2, 2, 30)));
  Do(Joined("n0", "a", 2));
  Do(Joined("n1", "a", 2));
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
  Do(Submitted("k", SpecOf(2, 1, 30)));
  Do(Joined("n2", "a", 2));
  EXPECT_EQ(FindJob(state_, "k")->stage(), v1::STAGE_PREFLIGHT);
  Do(Joined("n3", "a", 2));
  EXPECT_TRUE(Do(SpareSet("n3", true)));
  EXPECT_FALSE(Do(SpareSet("n3", true)));
  Do(Submitted("l", SpecOf(2, 1, 30)));
  EXPECT_EQ(FindJob(state_, "l")->stage(), v1::STAGE_QUEUED);
  EXPECT_TRUE(absl::StrContains(FindJob(state_, "l")->message(), "n3 is a spare"));
  EXPECT_TRUE(Do(SpareSet("n3", false)));
  EXPECT_EQ(FindJob(state_, "l")->stage(), v1::STAGE_PREFLIGHT);
}

TEST_F(DriverPoolsTest, ASpareReplacesALostMachineAndIsASpareAgainWhenTheJobEnds) {
  Run();
  Do(Progressed(1, 1));
  Do(Joined("n2", "a", 2));
  Do(SpareSet("n2", true));
  Do(Joined("n3", "a", 2));
  Do(Lost("n1", "a"));
  Do(Fenced(1, "n0", {}));
  EXPECT_EQ(PlacedNodes().back(), "n3") << "active machines come first";
  EXPECT_TRUE(Node("n2").spare());
  Do(Passed("j", 2, "n3"));
  Do(Progressed(2, 2));
  Do(Lost("n3", "a"));
  Do(Fenced(2, "n0", {}));
  EXPECT_EQ(PlacedNodes().back(), "n2");
  EXPECT_TRUE(Node("n2").spare());
  Do(Cancelled(false));
  for (const char* node_id : {"n0", "n2"}) Do(Fenced(3, node_id, {}));
  ASSERT_EQ(job().stage(), v1::STAGE_ENDED);
  Do(Submitted("k", SpecOf(4, 1, 30)));
  EXPECT_TRUE(absl::StrContains(FindJob(state_, "k")->message(), "n2 is a spare"));
}

// --- quarantine ---------------------------------------------------------------------------------

TEST_F(DriverPoolsTest, ProcessesThatCannotBeEndedQuarantineTheirMachineAndTheJobGoesOn) {
  Run();
  Do(Progressed(1, 1));
  Do(Joined("n2", "a", 2));
  Do(Failed(1, 0, "n0", FAILURE_CLASS_EXITED));
  Do(Fenced(1, "n0", {}));
  Time(v1::STAGE_FENCE);
  ASSERT_TRUE(Node("n1").has_quarantine());
  EXPECT_TRUE(absl::StrContains(Node("n1").quarantine().evidence(), "could not end the processes"));
  EXPECT_EQ(PlacedNodes(), (std::vector<std::string>{"n0", "n0", "n2", "n2"}));
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
  EXPECT_TRUE(DesiredFor(state_, "n1").jobs().empty()) << "its agent goes on ending them";
  Do(Submitted("k", SpecOf(2, 1, 30)));
  EXPECT_EQ(FindJob(state_, "k")->stage(), v1::STAGE_QUEUED) << "its slots are not handed out";
  EXPECT_TRUE(Do(Uncordoned("n1")));
  EXPECT_EQ(FindJob(state_, "k")->stage(), v1::STAGE_PREFLIGHT);
}

TEST_F(DriverPoolsTest, ACancelledJobEndsAndTheMachineThatCannotEndItIsQuarantined) {
  Run();
  Do(Cancelled(false));
  Time(v1::STAGE_STOP);
  Do(Fenced(1, "n0", {}));
  Time(v1::STAGE_FENCE);
  EXPECT_EQ(job().state(), megascale::control::v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(Node("n1").has_quarantine());
}

TEST_F(DriverPoolsTest, AQuarantineIsSeenByAllJobsOfTheMachine) {
  Do(Joined("n0", "a", 4));
  Do(Submitted("j", SpecOf(2, 1, 30)));
  Do(Submitted("k", SpecOf(2, 1, 30)));
  Do(Passed("j", 1, "n0"));
  Do(Passed("k", 1, "n0"));
  Event event;
  event.mutable_node_quarantined()->set_node_id("n0");
  event.mutable_node_quarantined()->set_evidence("its memory has errors");
  EXPECT_TRUE(Do(event));
  EXPECT_FALSE(Do(event));
  EXPECT_EQ(job().stage(), v1::STAGE_LEAVE);
  EXPECT_EQ(FindJob(state_, "k")->reason(), "NodeQuarantined");
}

// --- budgets ------------------------------------------------------------------------------------

TEST_F(DriverPoolsTest, LostMachinesDoNotUseUpWhatFailuresOfTheJobMay) {
  Run();
  int64_t attempt = 1;
  for (int i = 0; i < 2; ++i) {
    KillRank(attempt);
    BackoffElapsed(attempt++);
  }
  EXPECT_EQ(job().attempts_without_progress(), 2);
  for (const std::string incarnation : {"b", "c"}) {
    Do(Joined("n1", incarnation, 2));
    Do(Fenced(attempt, "n0", {}));
    Do(Fenced(attempt, "n1", {}));
    BackoffElapsed(attempt++);
    Do(Passed("j", attempt, "n1"));
  }
  EXPECT_EQ(job().attempts_without_progress(), 2);
  EXPECT_EQ(job().machine_failures(), 2);
  EXPECT_EQ(job().stage(), v1::STAGE_RUN);
}

TEST_F(DriverPoolsTest, AJobThatTakesItsMachinesDownGivesUp) {
  Run();
  int64_t attempt = 1;
  for (int i = 2; !IsTerminal(job()) && i < 12; ++i) {
    Do(Joined(absl::StrCat("n", i), "a", 2));
    Do(Lost(job().placements(3).node_id(), "a"));
    Do(Fenced(attempt, job().placements(0).node_id(), {}));
    BackoffElapsed(attempt);
    attempt = job().attempt();
    for (const std::string& node_id : NodesOf(job())) Do(Passed("j", attempt, node_id));
  }
  EXPECT_EQ(job().state(), megascale::control::v1::JOB_STATE_FAILED);
  EXPECT_EQ(job().machine_failures(), 2) << "the third lost machine is the job's fault";
}

TEST_F(DriverPoolsTest, ThreeFailuresOnOneMachineAreTheMachinesIfTheJobThenGoesOnElsewhere) {
  Run();
  Do(Joined("n2", "a", 2));
  for (int64_t attempt = 1; attempt <= 3; ++attempt) {
    EXPECT_EQ(PlacedNodes().front(), "n0");
    KillRank(attempt);
    BackoffElapsed(attempt);
  }
  EXPECT_EQ(PlacedNodes(), (std::vector<std::string>{"n2", "n2", "n1", "n1"}));
  EXPECT_FALSE(Node("n0").has_quarantine()) << "the job may be at fault";
  Do(Passed("j", 4, "n2"));
  Do(Progressed(4, 1));
  ASSERT_TRUE(Node("n0").has_quarantine());
  EXPECT_TRUE(absl::StrContains(Node("n0").quarantine().evidence(), "rank 0 on n0"));
  EXPECT_EQ(job().attempts_without_progress(), 0);
}

TEST_F(DriverPoolsTest, FailuresOfPeersAndOfTheStoreBlameNoMachine) {
  Run();
  Do(Joined("n2", "a", 2));
  const std::vector<megascale::telemetry::v1::FailureClass> classes = {
      megascale::telemetry::v1::FAILURE_CLASS_RENDEZVOUS,
      megascale::telemetry::v1::FAILURE_CLASS_ABORTED, FAILURE_CLASS_EXITED};
  for (int64_t attempt = 1; attempt <= 3; ++attempt) {
    Do(Failed(attempt, 0, "n0", classes[attempt - 1]));
    Do(Fenced(attempt, "n0", {}));
    Do(Fenced(attempt, "n1", {}));
    BackoffElapsed(attempt);
  }
  EXPECT_EQ(PlacedNodes().front(), "n0") << "one failure is its own";
  Do(Lost("n0", "a"));
  Do(Fenced(4, "n1", {}));
  BackoffElapsed(4);
  Do(Passed("j", 5, "n2"));
  Do(Progressed(5, 1));
  EXPECT_FALSE(Node("n0").has_quarantine());
}

TEST_F(DriverPoolsTest, AFailureThatFollowsTheJobBlamesNoMachine) {
  Run();
  Do(Joined("n2", "a", 2));
  for (int64_t attempt = 1; attempt <= 3; ++attempt) {
    KillRank(attempt);
    BackoffElapsed(attempt);
  }
  Do(Passed("j", 4, "n2"));
  Do(Failed(4, 0, "n2", FAILURE_CLASS_EXITED));
  Do(Fenced(4, "n2", {}));
  Do(Fenced(4, "n1", {}));
  EXPECT_EQ(job().state(), megascale::control::v1::JOB_STATE_FAILED);
  EXPECT_FALSE(Node("n0").has_quarantine());
}

TEST_F(DriverPoolsTest, AMachineThatCameBackDuringTheFenceIsNotBlamedForTheTimeBefore) {
  Run();
  Do(Progressed(1, 1));
  Do(Failed(1, 0, "n0", FAILURE_CLASS_EXITED));
  Do(Fenced(1, "n0", {}));
  Do(Lost("n1", "a"));
  Do(Fenced(1, "n1", {}));
  Do(Lost("n0", "a"));
  seconds_ += 250;
  Do(Joined("n0", "a", 2));
  seconds_ -= absl::ToInt64Seconds(kFenceTimeout) - 50;
  Time(v1::STAGE_WAIT_FOR_SLOTS);
  EXPECT_FALSE(Node("n0").has_quarantine()) << "it had 50 s";
  Time(v1::STAGE_WAIT_FOR_SLOTS);
  EXPECT_TRUE(Node("n0").has_quarantine());
}

TEST_F(DriverPoolsTest, ACancelledJobEndsOnlyOnceAMachineThatCameBackHadItsTimeToo) {
  Run();
  Do(Cancelled(false));
  Time(v1::STAGE_STOP);
  Do(Lost("n1", "a"));
  seconds_ += 250;
  Do(Joined("n1", "a", 2));
  seconds_ -= absl::ToInt64Seconds(kFenceTimeout) - 50;
  Time(v1::STAGE_FENCE);
  EXPECT_EQ(job().stage(), v1::STAGE_FENCE) << "n1 had 50 s, and its processes would be nobody's";
  Time(v1::STAGE_FENCE);
  EXPECT_TRUE(IsTerminal(job()));
  EXPECT_TRUE(Node("n0").has_quarantine());
  EXPECT_TRUE(Node("n1").has_quarantine());
}

// --- machines that do not come back -------------------------------------------------------------

TEST_F(DriverPoolsTest, OnlyALostNodeCanBeForgotten) {
  Do(Joined("n0", "a", 2));
  Do(Joined("n1", "a", 2));
  Do(Lost("n1", "a"));
  EXPECT_GT(Node("n1").lost_unix_nanos(), 0);
  Event event;
  event.mutable_nodes_forgotten()->add_node_ids("n0");
  EXPECT_FALSE(Do(event));
  event.mutable_nodes_forgotten()->add_node_ids("n1");
  EXPECT_TRUE(Do(event));
  EXPECT_EQ(state_.nodes_size(), 1);
  Do(Joined("n1", "b", 2));
  EXPECT_EQ(state_.nodes_size(), 2);
}

// --- suspects -----------------------------------------------------------------------------------

class SuspectTest : public DriverPoolsTest {
 protected:
  void RunWith(megascale::job::v1::OnSuspect on_suspect) {
    megascale::job::v1::JobSpec spec = SpecOf(2, 2, 30);
    spec.mutable_fault()->set_on_suspect(on_suspect);
    Do(Submitted("j", spec));
    Do(Joined("n0", "a", 2));
    Do(Joined("n1", "a", 2));
    Do(Passed("j", 1, "n0"));
    Do(Passed("j", 1, "n1"));
    Do(Started(1));
  }

  bool Suspect(int64_t attempt, int rank, const std::string& node_id) {
    Event event;
    event.mutable_suspect_found()->set_job_id("j");
    megascale::control::v1::Suspicion* suspicion =
        event.mutable_suspect_found()->mutable_suspicion();
    suspicion->set_attempt(attempt);
    suspicion->set_rank(rank);
    suspicion->set_node_id(node_id);
    suspicion->set_verdict("rank stands in B.c1.m0");
    return Do(event);
  }
};

TEST_F(SuspectTest, ASuspicionIsToldOnceAndEndsWithTheNextStep) {
  RunWith(megascale::job::v1::ON_SUSPECT_TELL);
  ASSERT_TRUE(Suspect(1, 2, "n1"));
  EXPECT_EQ(job().stage(), v1::STAGE_RUN);
  EXPECT_EQ(job().suspicion().action(), "told: fault.on_suspect is not evict");
  EXPECT_FALSE(Suspect(1, 0, "n0")) << "the first one stays";
  Event steps;
  steps.mutable_steps_taken()->set_job_id("j");
  steps.mutable_steps_taken()->set_attempt(1);
  steps.mutable_steps_taken()->set_step(3);
  ASSERT_TRUE(Do(steps));
  EXPECT_FALSE(job().has_suspicion());
}

TEST_F(SuspectTest, AMachineIsNotBlamedForARankThatItDoesNotHold) {
  RunWith(megascale::job::v1::ON_SUSPECT_EVICT);
  Do(Joined("n2", "a", 2));
  EXPECT_FALSE(Suspect(1, 2, "n0"));
  EXPECT_FALSE(Suspect(1, 99, "n1"));
  EXPECT_FALSE(Suspect(2, 2, "n1")) << "of another attempt";
  EXPECT_FALSE(Node("n0").has_quarantine());
}

TEST_F(SuspectTest, TheSuspectIsEvictedIfTheRestHasRoom) {
  RunWith(megascale::job::v1::ON_SUSPECT_EVICT);
  Do(Joined("n2", "a", 2));
  ASSERT_TRUE(Suspect(1, 2, "n1"));
  EXPECT_TRUE(Node("n1").has_quarantine());
  EXPECT_EQ(job().stage(), v1::STAGE_FENCE);
  EXPECT_EQ(job().culprit().rank(), 2);
  EXPECT_EQ(job().suspicion().action(), "evicted node n1");
  Do(Fenced(1, "n0", {}));
  Do(Fenced(1, "n1", {}));
  if (job().stage() == v1::STAGE_BACKOFF) BackoffElapsed(1);
  EXPECT_EQ(PlacedNodes(), (std::vector<std::string>{"n0", "n0", "n2", "n2"}));
  EXPECT_FALSE(job().has_suspicion());
}

TEST_F(SuspectTest, TheSuspectStaysIfTheJobNeedsIt) {
  RunWith(megascale::job::v1::ON_SUSPECT_EVICT);
  ASSERT_TRUE(Suspect(1, 2, "n1"));
  EXPECT_FALSE(Node("n1").has_quarantine());
  EXPECT_EQ(job().stage(), v1::STAGE_RUN);
  EXPECT_EQ(job().suspicion().action(),
            "told, and not evicted: the other machines have too few free slots for the job");
}

TEST_F(SuspectTest, NobodyIsEvictedWithoutAName) {
  RunWith(megascale::job::v1::ON_SUSPECT_EVICT);
  Do(Joined("n2", "a", 2));
  ASSERT_TRUE(Suspect(1, -1, ""));
  EXPECT_EQ(job().suspicion().action(), "told, and not evicted: no rank is named");
}

TEST_F(SuspectTest, AJobEvictsAtMostTwoSuspectsAnHour) {
  RunWith(megascale::job::v1::ON_SUSPECT_EVICT);
  for (const char* node : {"n2", "n3", "n4", "n5"}) Do(Joined(node, "a", 2));
  for (int64_t attempt = 1; attempt <= 3; ++attempt) {
    const std::string node = PlacedNodes()[2];
    ASSERT_TRUE(Suspect(attempt, 2, node));
    EXPECT_EQ(Node(node).has_quarantine(), attempt <= 2) << attempt;
    if (attempt == 3) break;
    Do(Fenced(attempt, "n0", {}));
    Do(Fenced(attempt, node, {}));
    if (job().stage() == v1::STAGE_BACKOFF) BackoffElapsed(attempt);
    Do(Passed("j", attempt + 1, PlacedNodes()[2]));
    Do(Started(attempt + 1));
  }
  EXPECT_EQ(job().suspicion().action(),
            "told, and not evicted: the job had 2 evictions within an hour");
}

// What hits many machines within an hour is no machine's fault.
TEST_F(SuspectTest, AllJobsTogetherEvictAtMostFourSuspectsAnHour) {
  megascale::job::v1::JobSpec spec = SpecOf(1, 1, 30);
  spec.mutable_fault()->set_on_suspect(megascale::job::v1::ON_SUSPECT_EVICT);
  for (int node = 0; node < 9; ++node) Do(Joined(absl::StrCat("n", node), "a", 1));
  for (const char* job_id : {"j", "k", "l"}) Do(Submitted(job_id, spec));
  const auto place = [&](const std::string& job_id) {
    return FindJob(state_, job_id)->placements(0).node_id();
  };
  // Starts the attempt of a job, in which its rank becomes a suspect.
  const auto suspect = [&](const std::string& job_id, int64_t attempt) {
    Do(Passed(job_id, attempt, place(job_id)));
    Event started = Started(attempt);
    started.mutable_training_started()->set_job_id(job_id);
    Do(started);
    Event found;
    found.mutable_suspect_found()->set_job_id(job_id);
    found.mutable_suspect_found()->mutable_suspicion()->set_attempt(attempt);
    found.mutable_suspect_found()->mutable_suspicion()->set_node_id(place(job_id));
    EXPECT_TRUE(Do(found));
    return FindJob(state_, job_id)->suspicion().action();
  };
  for (const char* job_id : {"j", "k"}) {
    for (int64_t attempt = 1; attempt <= 2; ++attempt) {
      const std::string node = place(job_id);
      ASSERT_EQ(suspect(job_id, attempt), absl::StrCat("evicted node ", node));
      Event fenced = Fenced(attempt, node, {});
      fenced.mutable_node_fenced()->set_job_id(job_id);
      Do(fenced);
      Event elapsed;
      elapsed.mutable_backoff_elapsed()->set_job_id(job_id);
      elapsed.mutable_backoff_elapsed()->set_attempt(attempt);
      Do(elapsed);
    }
  }
  const std::string node = place("l");
  EXPECT_EQ(suspect("l", 1),
            "told, and not evicted: all jobs together had 4 evictions within an hour");
  EXPECT_FALSE(Node(node).has_quarantine());
}

// --- machines that a client reports -------------------------------------------------------------

class ReportTest : public SuspectTest {
 protected:
  v1::SuspectFound ReportOf(int64_t attempt, const std::string& node_id) {
    v1::SuspectFound found;
    found.set_job_id("j");
    found.mutable_suspicion()->set_attempt(attempt);
    found.mutable_suspicion()->set_node_id(node_id);
    found.mutable_suspicion()->set_verdict("its compute share differs");
    return found;
  }

  // Checks the report as the driver does, and takes it if it is new.
  absl::StatusOr<bool> Report(v1::SuspectFound found, absl::Duration age = absl::Hours(1)) {
    const absl::Time now = absl::FromUnixSeconds(job().suspicion().confirmed_at().seconds()) + age;
    const auto is_new = IsNewReport(state_, now, &found);
    if (!is_new.ok() || !*is_new) return is_new;
    Event event;
    *event.mutable_suspect_found() = found;
    EXPECT_TRUE(Do(event));
    return true;
  }

  // A step is reported `after` the last report.
  void TakeStep(absl::Duration after) {
    Event steps;
    steps.mutable_steps_taken()->set_job_id("j");
    steps.mutable_steps_taken()->set_attempt(job().attempt());
    seconds_ += absl::ToInt64Seconds(after);
    Do(steps);
  }
};

TEST_F(ReportTest, AReportIsToldAndOutlivesProgressUntilItIsOld) {
  RunWith(megascale::job::v1::ON_SUSPECT_TELL);
  ASSERT_TRUE(*Report(ReportOf(1, "n1")));
  EXPECT_EQ(job().suspicion().rank(), 2) << "the first rank on n1";
  EXPECT_EQ(job().suspicion().action(), "told: fault.on_suspect is not evict");
  TakeStep(absl::Minutes(10));
  EXPECT_TRUE(job().has_suspicion());
  TakeStep(absl::Minutes(21));
  EXPECT_FALSE(job().has_suspicion());
}

TEST_F(ReportTest, TheSameReportWithinAMinuteIsNoEventAndAnotherMachineIsAfterFiveSeconds) {
  RunWith(megascale::job::v1::ON_SUSPECT_TELL);
  ASSERT_TRUE(*Report(ReportOf(1, "n1")));
  EXPECT_FALSE(*Report(ReportOf(1, "n1"), absl::Seconds(59)));
  EXPECT_TRUE(*Report(ReportOf(1, "n1"), absl::Seconds(60)));
  EXPECT_FALSE(*Report(ReportOf(1, "n0"), absl::Seconds(4))) << "each report is logged";
  EXPECT_TRUE(*Report(ReportOf(1, "n0"), absl::Seconds(5)));
  EXPECT_EQ(job().suspicion().node_id(), "n0");
}

TEST_F(ReportTest, TheFirstTimeAtWhichTheFaultBeganIsKept) {
  RunWith(megascale::job::v1::ON_SUSPECT_TELL);
  TakeStep(absl::Hours(1));
  v1::SuspectFound found = ReportOf(1, "n1");
  const auto began = [&] { return job().suspicion().began_at().seconds(); };
  ASSERT_TRUE(*Report(found));
  EXPECT_FALSE(job().suspicion().has_began_at()) << "as in the logs of older releases";
  const int64_t reported = job().suspicion().since().seconds();
  found.mutable_suspicion()->mutable_began_at()->set_seconds(reported - 300);
  ASSERT_TRUE(*Report(found));
  EXPECT_EQ(began(), reported - 300);
  EXPECT_EQ(job().suspicion().since().seconds(), reported);
  found.mutable_suspicion()->mutable_began_at()->set_seconds(reported - 60);
  ASSERT_TRUE(*Report(found)) << "15 minutes later a report no longer sees the beginning";
  EXPECT_EQ(began(), reported - 300);
  found = ReportOf(1, "n0");
  found.mutable_suspicion()->mutable_began_at()->set_seconds(reported - 60);
  ASSERT_TRUE(*Report(found));
  EXPECT_EQ(began(), reported - 60) << "of another machine";
}

TEST_F(ReportTest, AFaultDoesNotBeginAfterItsReport) {
  RunWith(megascale::job::v1::ON_SUSPECT_TELL);
  v1::SuspectFound found = ReportOf(1, "n1");
  found.mutable_suspicion()->mutable_began_at()->set_seconds(int64_t{1} << 60);
  ASSERT_TRUE(*Report(found, absl::Seconds(5000)));
  EXPECT_EQ(job().suspicion().began_at().seconds(), 5000);
  found.mutable_suspicion()->mutable_began_at()->set_seconds(-1);
  EXPECT_EQ(Report(found).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ReportTest, WhatTheDriverFoundItselfStaysAndReplacesAReport) {
  RunWith(megascale::job::v1::ON_SUSPECT_TELL);
  ASSERT_TRUE(*Report(ReportOf(1, "n1")));
  ASSERT_TRUE(Suspect(1, 0, "n0"));
  EXPECT_EQ(job().suspicion().node_id(), "n0");
  EXPECT_FALSE(*Report(ReportOf(1, "n1")));
}

TEST_F(ReportTest, AClientCannotBlameWhatTheJobDoesNotHold) {
  RunWith(megascale::job::v1::ON_SUSPECT_EVICT);
  Do(Joined("n2", "a", 2));
  for (const char* node : {"n2", "n9", ""}) {
    EXPECT_EQ(Report(ReportOf(1, node)).status().code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(Report(ReportOf(2, "n1")).status().code(), absl::StatusCode::kFailedPrecondition);
  v1::SuspectFound other_job = ReportOf(1, "n1");
  other_job.set_job_id("k");
  EXPECT_EQ(Report(other_job).status().code(), absl::StatusCode::kNotFound);
  for (const std::string& text : {std::string(), std::string("a\nb"), std::string(501, 'a')}) {
    v1::SuspectFound found = ReportOf(1, "n1");
    found.mutable_suspicion()->set_verdict(text);
    EXPECT_EQ(Report(found).status().code(), absl::StatusCode::kInvalidArgument);
  }
  v1::SuspectFound found = ReportOf(1, "n1");
  for (int i = 0; i < 17; ++i) found.mutable_suspicion()->add_evidence("line");
  EXPECT_EQ(Report(found).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(Node("n1").has_quarantine());
}

TEST_F(ReportTest, AReportedMachineIsLeftWithACheckpoint) {
  RunWith(megascale::job::v1::ON_SUSPECT_EVICT);
  Do(Joined("n2", "a", 2));
  ASSERT_TRUE(*Report(ReportOf(1, "n1")));
  EXPECT_TRUE(Node("n1").has_quarantine());
  EXPECT_EQ(job().stage(), v1::STAGE_LEAVE);
  EXPECT_FALSE(job().has_culprit());
  EXPECT_EQ(job().suspicion().action(), "evicted node n1");
}

TEST_F(ReportTest, AReportedMachineThatTheJobNeedsStays) {
  RunWith(megascale::job::v1::ON_SUSPECT_EVICT);
  ASSERT_TRUE(*Report(ReportOf(1, "n1")));
  EXPECT_FALSE(Node("n1").has_quarantine());
  Do(Joined("n2", "a", 2));
  ASSERT_TRUE(*Report(ReportOf(1, "n1")));
  EXPECT_TRUE(Node("n1").has_quarantine()) << "now there is room";
}

// --- ranks that are slow ------------------------------------------------------------------------

class SlowSuspectTest : public ReportTest {
 protected:
  // The driver found that steps take long because of `rank`; -1: of nobody whom it may name.
  bool FindSlow(int rank, const std::string& node_id, absl::Duration age = absl::Hours(1)) {
    v1::SuspectFound found = ReportOf(job().attempt(), node_id);
    found.mutable_suspicion()->set_kind(megascale::control::v1::Suspicion::KIND_SLOW);
    found.mutable_suspicion()->set_rank(rank);
    const absl::Time now = absl::FromUnixSeconds(job().suspicion().confirmed_at().seconds()) + age;
    if (!MayReplaceSuspicion(job(), found.suspicion(), now)) return false;
    Event event;
    *event.mutable_suspect_found() = found;
    return Do(event);
  }
};

TEST_F(SlowSuspectTest, ASlowRankIsToldAndOutlivesProgressUntilItIsOld) {
  RunWith(megascale::job::v1::ON_SUSPECT_TELL);
  ASSERT_TRUE(FindSlow(2, "n1"));
  EXPECT_EQ(job().suspicion().action(), "told: fault.on_suspect is not evict");
  EXPECT_FALSE(FindSlow(2, "n1", absl::Seconds(59))) << "each one is logged";
  TakeStep(absl::Minutes(10));
  EXPECT_TRUE(job().has_suspicion());
  TakeStep(absl::Minutes(21));
  EXPECT_FALSE(job().has_suspicion());
}

TEST_F(SlowSuspectTest, ASlowMachineIsLeftWithACheckpointIfTheRestHasRoom) {
  RunWith(megascale::job::v1::ON_SUSPECT_EVICT);
  ASSERT_TRUE(FindSlow(2, "n1"));
  EXPECT_FALSE(Node("n1").has_quarantine()) << "the job needs it";
  Do(Joined("n2", "a", 2));
  ASSERT_TRUE(FindSlow(2, "n1"));
  EXPECT_TRUE(Node("n1").has_quarantine());
  EXPECT_EQ(job().stage(), v1::STAGE_LEAVE) << "a job that trains can save";
  EXPECT_FALSE(job().has_culprit());
  EXPECT_EQ(job().evictions_size(), 1) << "it counts for the limits";
}

TEST_F(SlowSuspectTest, ASlowLinkEvictsNobodyAndIsLoggedOnceAMinute) {
  RunWith(megascale::job::v1::ON_SUSPECT_EVICT);
  Do(Joined("n2", "a", 2));
  ASSERT_TRUE(FindSlow(-1, ""));
  EXPECT_EQ(job().suspicion().action(), "told, and not evicted: no rank is named");
  EXPECT_FALSE(FindSlow(-1, "", absl::Seconds(10)));
}

TEST_F(SlowSuspectTest, AStallReplacesASlowRankAndNotTheOtherWayRound) {
  RunWith(megascale::job::v1::ON_SUSPECT_TELL);
  ASSERT_TRUE(FindSlow(2, "n1"));
  ASSERT_TRUE(Suspect(1, 0, "n0"));
  EXPECT_EQ(job().suspicion().node_id(), "n0");
  EXPECT_FALSE(FindSlow(2, "n1"));
}

}  // namespace
}  // namespace megascale::driver
