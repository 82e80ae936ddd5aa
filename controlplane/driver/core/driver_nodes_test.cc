// Nodes that jobs must leave, evicted by hand or drained by their agent, and those that are tested;
// and the counts of what is left of an attempt on nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "controlplane/driver/core/desired_states.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/job_index.h"
#include "controlplane/driver/core/testing/test_core.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;
using ::testing::ElementsAre;
using ::testing::SizeIs;

class DriverNodesTest : public DriverCoreTest {
 protected:
  // All ranks of attempt 1 stop at `step`, and its checkpoint is stored.
  void StopAndStore(int64_t step) {
    for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, true, step));
    Do(Stored(1, step));
    Do(Manifest(1, step));
  }
  void FenceAll(int64_t attempt) {
    for (const std::string& node_id : NodesOf(job())) Do(Fenced(attempt, node_id, {}));
  }
};

TEST_F(DriverNodesTest, AnEvictedNodesJobMakesACheckpointAndGoesOnElsewhere) {
  Run();
  Do(Joined("n2", "a", 2));
  Do(Started(1));
  Do(Progressed(1, 3));
  ASSERT_TRUE(Do(Evicted("n1", "memory errors")));
  EXPECT_EQ(job().state(), control::JOB_STATE_RECOVERING);
  EXPECT_EQ(job().reason(), "NodeEvicted");
  EXPECT_EQ(job().message(), "leaves node n1: its ranks make a checkpoint and stop");
  for (const char* node_id : {"n0", "n1"}) {
    EXPECT_EQ(Desired(node_id).phase(), agent::DesiredJob::PHASE_STOP);
    EXPECT_TRUE(Desired(node_id).stop_with_checkpoint());
    EXPECT_EQ(Desired(node_id).stop_grace().seconds(), 60);
  }
  for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, true, 7));
  EXPECT_EQ(job().message(), "leaves node n1: waits for the checkpoint of step 7 to be stored");
  Do(Stored(1, 7));
  EXPECT_THAT(Desired("n0").finalize(), SizeIs(1));
  Do(Manifest(1, 7));
  EXPECT_EQ(job().stage(), pb::STAGE_FENCE);
  EXPECT_EQ(job().attempt(), 1);
  FenceAll(1);
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_EQ(job().attempt_reason(), "NodeEvicted");
  EXPECT_EQ(job().restore().source(), agent::RestorePoint::SOURCE_STORAGE);
  EXPECT_EQ(job().restore().step(), 7);
  EXPECT_THAT(PlacedNodes(), ElementsAre("n0", "n0", "n2", "n2"));
  EXPECT_FALSE(job().has_culprit());
  EXPECT_EQ(job().attempts_without_progress(), 0);
  EXPECT_EQ(DesiredFor(state_, "n1").jobs_size(), 0);
}

TEST_F(DriverNodesTest, LeavingIsNoFailureHoweverOftenItHappensWithoutProgress) {
  Run();
  for (int64_t attempt = 1; attempt <= 10; ++attempt) {
    ASSERT_EQ(job().attempt(), attempt);
    ASSERT_TRUE(Do(Evicted("n1", "")));
    for (int rank = 0; rank < 4; ++rank) Do(Ended(attempt, rank, true, 0));
    FenceAll(attempt);
    EXPECT_EQ(job().stage(), pb::STAGE_WAIT_FOR_SLOTS);
    EXPECT_EQ(job().message(),
              "needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots; 1 node offers 2 (n0 2); n1 is "
              "evicted");
    ASSERT_TRUE(Do(Uncordoned("n1")));
  }
  EXPECT_EQ(job().attempt(), 11);
  EXPECT_EQ(job().attempts_without_progress(), 0);
}

TEST_F(DriverNodesTest, EvictingTwiceChangesNothingButTheReason) {
  Run();
  ASSERT_TRUE(Do(Evicted("n1", "a")));
  EXPECT_FALSE(Do(Evicted("n1", "a")));
  ASSERT_TRUE(Do(Evicted("n1", "b")));
  EXPECT_EQ(FindNode(state_, "n1")->evicted_why(), "b");
  EXPECT_EQ(job().stage(), pb::STAGE_LEAVE);
  ASSERT_TRUE(Do(Uncordoned("n1")));
  EXPECT_FALSE(Do(Uncordoned("n1")));
  EXPECT_FALSE(Do(Evicted("n7", "")));
  EXPECT_FALSE(Do(Uncordoned("n7")));
}

TEST_F(DriverNodesTest, AnEvictedNodeStaysSoWhenItsAgentIsRestarted) {
  SubmitAndJoin();
  Do(Evicted("n1", ""));
  Do(Joined("n1", "b", 2));
  FenceAll(1);
  EXPECT_TRUE(FindNode(state_, "n1")->evicted());
  EXPECT_EQ(job().message(),
            "needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots; 1 node offers 2 (n0 2); n1 is "
            "evicted");
}

TEST_F(DriverNodesTest, AJobInItsPreflightLeavesAtOnce) {
  SubmitAndJoin();
  Do(Joined("n2", "a", 2));
  Do(Evicted("n0", ""));
  EXPECT_EQ(job().stage(), pb::STAGE_FENCE);
  FenceAll(1);
  EXPECT_EQ(job().stage(), pb::STAGE_PREFLIGHT);
  EXPECT_THAT(PlacedNodes(), ElementsAre("n2", "n2", "n1", "n1"));
}

TEST_F(DriverNodesTest, AFailureWhileAJobLeavesOnlyCostsTheCheckpoint) {
  Run();
  Do(Joined("n2", "a", 2));
  Do(Stored(1, 10));
  Do(Manifest(1, 10));
  Do(Evicted("n1", ""));
  Do(Failed(1, 0, "n0", telemetry::FAILURE_CLASS_EXITED));
  EXPECT_EQ(job().reason(), "NodeEvicted");
  EXPECT_EQ(job().message(),
            "leaves node n1 without a checkpoint of its own, for rank 0 on n0: evidence of rank 0");
  EXPECT_EQ(job().stage(), pb::STAGE_FENCE);
  FenceAll(1);
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_EQ(job().restore().step(), 10);
  EXPECT_EQ(job().attempts_without_progress(), 0);
}

TEST_F(DriverNodesTest, ALeaveThatTakesTooLongEndsWithoutItsCheckpoint) {
  Run();
  Do(Evicted("n1", ""));
  const std::vector<Timer> timers = TimersFor(state_);
  ASSERT_THAT(timers, SizeIs(1));
  EXPECT_EQ(timers[0].delay, absl::Seconds(180));
  ASSERT_TRUE(Do(timers[0].when_due));
  EXPECT_EQ(job().message(),
            "leaves node n1 without a checkpoint of its own, which was not stored in time");
  EXPECT_EQ(Desired("n0").phase(), agent::DesiredJob::PHASE_HOLD);
}

TEST_F(DriverNodesTest, CancellingAJobThatLeavesCancelsIt) {
  Run();
  Do(Evicted("n1", ""));
  Do(Cancelled(false));
  EXPECT_EQ(job().stage(), pb::STAGE_STOP);
  for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, true, 7));
  FenceAll(1);
  EXPECT_EQ(job().state(), control::JOB_STATE_CANCELLED);
}

TEST_F(DriverNodesTest, AJobThatFinishesWhileItLeavesHasSucceeded) {
  Run();
  Do(Evicted("n1", ""));
  for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, false, 30));
  Do(Stored(1, 30));
  Do(Manifest(1, 30));
  FenceAll(1);
  EXPECT_EQ(job().state(), control::JOB_STATE_SUCCEEDED);
}

TEST_F(DriverNodesTest, AJobWhoseRanksAllEndedIsNotDisturbed) {
  Run();
  for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, false, 30));
  Do(Evicted("n1", ""));
  EXPECT_EQ(job().stage(), pb::STAGE_RUN);
}

TEST_F(DriverNodesTest, AnEvictionChangesNothingOfAJobThatHasEnded) {
  Run();
  Do(Cancelled(false));
  for (int rank = 0; rank < 4; ++rank) Do(Ended(1, rank, true, 12));
  Do(Fenced(1, "n0", {{.rank = 0, .step = 10}, {.rank = 1, .step = 10}}));
  Do(Fenced(1, "n1", {{.rank = 2, .step = 10}, {.rank = 3, .step = 10}}));
  ASSERT_EQ(job().state(), control::JOB_STATE_CANCELLED);
  const std::string ended = job().SerializeAsString();
  ASSERT_TRUE(Do(Evicted("n1", "memory errors")));
  EXPECT_EQ(job().SerializeAsString(), ended);
}

TEST_F(DriverNodesTest, ADrainingNodeIsLeftAndItsNextAgentGetsRanksAgain) {
  Run();
  EXPECT_FALSE(Do(Draining("n1", "another incarnation")));
  ASSERT_TRUE(Do(Draining("n1", "a")));
  EXPECT_FALSE(Do(Draining("n1", "a")));
  EXPECT_EQ(job().reason(), "NodeDraining");
  EXPECT_TRUE(DesiredFor(state_, "n1").draining());
  EXPECT_FALSE(DesiredFor(state_, "n0").draining());
  StopAndStore(5);
  FenceAll(1);
  EXPECT_EQ(
      job().message(),
      "needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots; 1 node offers 2 (n0 2); n1 drains");
  Do(Lost("n1", "a"));
  EXPECT_EQ(job().message(),
            "needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots; 1 node offers 2 (n0 2)");
  EXPECT_EQ(job().stage(), pb::STAGE_WAIT_FOR_SLOTS);
  Do(Joined("n1", "b", 2));
  Do(Fenced(1, "n1", {}));
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_EQ(job().attempt_reason(), "NodeDraining");
  EXPECT_EQ(job().restore().step(), 5);
}

TEST_F(DriverNodesTest, ANodeThatIsToBeFreeKeepsNoMemoryToRestoreFrom) {
  Run();
  Do(Failed(1, 0, "n0", telemetry::FAILURE_CLASS_EXITED));
  Do(Fenced(1, "n1", {{2, 20}, {3, 20}}));
  EXPECT_EQ(Desired("n1").phase(), agent::DesiredJob::PHASE_HOLD);
  Do(Evicted("n1", ""));
  EXPECT_EQ(DesiredFor(state_, "n1").jobs_size(), 0);
  Do(Fenced(1, "n0", {{0, 20}, {1, 20}}));
  BackoffElapsed(1);
  EXPECT_EQ(job().stage(), pb::STAGE_WAIT_FOR_SLOTS);
  Do(Uncordoned("n1"));
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_EQ(job().restore().source(), agent::RestorePoint::SOURCE_INITIAL);
}

// Which agents may take over node id n1 from agent "a".
class NodeIdTest : public DriverNodesTest {
 protected:
  void SetUp() override {
    DriverNodesTest::SetUp();
    Run();
    candidate_ = HelloOf("n1", "b", 2);
  }
  absl::Status Check(Contact contact, const std::string& certificate = "") {
    return CheckJoin(state_, candidate_, certificate, contact);
  }
  absl::StatusCode CodeOf(Contact contact, const std::string& certificate = "") {
    return Check(contact, certificate).code();
  }
  void JoinWith(const std::string& certificate) {
    Event joined;
    *joined.mutable_node_joined()->mutable_hello() = HelloOf("n1", "a", 2);
    joined.mutable_node_joined()->set_certificate(certificate);
    ASSERT_TRUE(Do(joined));
    EXPECT_FALSE(Do(joined));
  }

  agent::Hello candidate_;
};

constexpr auto kOk = absl::StatusCode::kOk;
constexpr auto kHeld = absl::StatusCode::kAlreadyExists;
constexpr auto kBound = absl::StatusCode::kPermissionDenied;

TEST_F(NodeIdTest, TheAgentItselfMayConnectAgainAtAnyTime) {
  candidate_.set_incarnation("a");
  for (const Contact contact : {Contact::kUnknown, Contact::kGone, Contact::kHeard}) {
    EXPECT_EQ(CodeOf(contact), kOk);
  }
  candidate_.set_key("another key");
  EXPECT_EQ(CodeOf(Contact::kHeard), kHeld) << "an incarnation alone proves nothing";
}

TEST_F(NodeIdTest, TheSameKeyTakesOverUnlessTheFirstIsHeard) {
  EXPECT_EQ(CodeOf(Contact::kUnknown), kOk);
  EXPECT_EQ(CodeOf(Contact::kGone), kOk);
  EXPECT_EQ(CodeOf(Contact::kHeard), kHeld);
}

TEST_F(NodeIdTest, TheSameKeyOnAnotherMachineMayBeACopy) {
  candidate_.set_machine_id("rebooted, or copied");
  EXPECT_EQ(CodeOf(Contact::kUnknown), kHeld);
  EXPECT_EQ(CodeOf(Contact::kGone), kHeld) << "a healthy one's stream may break for a moment";
  EXPECT_EQ(Check(Contact::kHeard),
            absl::AlreadyExistsError(
                "node n1: the agent on host host-of-n1 has this node id and is healthy, and this "
                "agent has the same key, so its state directory may be a copy: if it is, remove "
                "agent.key from it, and give this agent another --node-id"));
}

TEST_F(NodeIdTest, AnotherKeyWaitsUntilTheFirstIsLost) {
  candidate_.set_key("another key");
  EXPECT_EQ(Check(Contact::kHeard),
            absl::AlreadyExistsError(
                "node n1: the agent on host host-of-n1 has this node id and is healthy, and this "
                "agent has another key; give this agent another --node-id, or end that one"));
  EXPECT_EQ(Check(Contact::kGone),
            absl::AlreadyExistsError(
                "node n1: the agent on host host-of-n1 has this node id and went away a moment "
                "ago; this agent, which has another key, is accepted once that one has been silent "
                "for the driver's --node-timeout"));
  EXPECT_EQ(CodeOf(Contact::kUnknown), kHeld);
  Do(Lost("n1", "a"));
  for (const Contact contact : {Contact::kUnknown, Contact::kGone, Contact::kHeard}) {
    EXPECT_EQ(CodeOf(contact), kOk);
  }
  candidate_.set_node_id("n7");
  EXPECT_EQ(CodeOf(Contact::kUnknown), kOk) << "nobody has that id";
}

TEST_F(NodeIdTest, AnAgentOfAVersionWithoutKeysIsKnownByItsMachine) {
  Event older = Joined("n1", "a", 2);
  older.mutable_node_joined()->mutable_hello()->clear_key();
  ASSERT_TRUE(Do(older));
  EXPECT_EQ(CodeOf(Contact::kGone), kOk);
  candidate_.set_machine_id("another");
  EXPECT_EQ(CodeOf(Contact::kGone), kHeld);
}

TEST_F(NodeIdTest, AnotherCertificateNeedsTheKeyOrAnEviction) {
  JoinWith("agent-1");
  Do(Lost("n1", "a"));
  EXPECT_EQ(CodeOf(Contact::kGone, "agent-2"), kOk) << "the same key: its certificate was renewed";
  candidate_.set_key("another key");
  EXPECT_EQ(CodeOf(Contact::kGone, "agent-1"), kOk);
  EXPECT_EQ(
      Check(Contact::kGone, "agent-2"),
      absl::PermissionDeniedError(
          "node n1: is bound to the certificate 'agent-1', and this agent shows 'agent-2' and "
          "another key; give it another --node-id or, if its machine replaces the one before, "
          "`megascale evict n1`, start this agent, `megascale uncordon n1`"));
  Do(Evicted("n1", "its machine is replaced"));
  EXPECT_EQ(CodeOf(Contact::kGone, "agent-2"), kOk);
  JoinWith("agent-2");
  Do(Uncordoned("n1"));
  EXPECT_EQ(FindNode(state_, "n1")->certificate(), "agent-2");
  EXPECT_EQ(CodeOf(Contact::kGone, "agent-1"), kBound);
}

TEST_F(NodeIdTest, AJobIsToldWhatBecameOfItsAgent) {
  Event joined = Joined("n1", "b", 2);
  joined.mutable_node_joined()->mutable_hello()->set_machine_id("after a boot");
  Do(joined);
  EXPECT_EQ(job().message(), "node n1: its machine was restarted, its processes died with it");
  FenceAll(1);
  BackoffElapsed(1);
  joined = Joined("n1", "c", 2);
  joined.mutable_node_joined()->mutable_hello()->set_key("another key");
  joined.mutable_node_joined()->mutable_hello()->set_hostname("spare");
  Do(joined);
  EXPECT_EQ(job().message(),
            "node n1: another machine joined under its node id (now host spare, before host "
            "host-of-n1), its processes are lost");
}

TEST_F(DriverNodesTest, AnUnknownNodeIsNotFoundAndTheNearestIsNamed) {
  SubmitAndJoin();
  Event evicted = Evicted("n11", "");
  const auto known = IsNewEviction(state_, evicted.node_evicted());
  EXPECT_EQ(known.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(known.status().message(), "node n11: there is no such node; did you mean n1?");
  EXPECT_EQ(IsNewUncordon(state_, "gpu-rack-7").status().message(),
            "node gpu-rack-7: there is no such node; `megascale status` shows all nodes");
  EXPECT_TRUE(*IsNewEviction(state_, Evicted("n1", "").node_evicted()));
  EXPECT_FALSE(*IsNewUncordon(state_, "n1"));
}

// --- tests of machines ------------------------------------------------------------------------

using megascale::agent::v1::MachineTest;

class MachineTestsTest : public DriverCoreTest {
 protected:
  const NodeRecord& Node(const std::string& node_id) const { return *FindNode(state_, node_id); }
  void SetUp() override {
    Event started;
    started.mutable_driver_started()->set_rules(kRules);
    started.mutable_driver_started()->set_machine_tests(megascale::agent::v1::TEST_KIND_QUICK);
    Do(std::move(started));
  }
  void Join(const std::string& node_id, const std::string& incarnation) {
    Event joined = Joined(node_id, incarnation, 2);
    joined.mutable_node_joined()->mutable_hello()->set_tests_machine(true);
    Do(joined);
  }
  Event Tested(const std::string& node_id, const std::string& incarnation,
               const std::string& evidence = "") const {
    Event event;
    auto* tested = event.mutable_machine_tested();
    tested->set_node_id(node_id);
    tested->set_incarnation(incarnation);
    tested->mutable_test()->set_id(Node(node_id).test().test().id());
    tested->mutable_test()->set_state(evidence.empty() ? MachineTest::STATE_PASSED
                                                       : MachineTest::STATE_FAILED);
    tested->mutable_test()->set_evidence(evidence);
    return event;
  }
  void TurnTests(megascale::agent::v1::TestKind kind) {
    Event started;
    started.mutable_driver_started()->set_rules(kRules);
    started.mutable_driver_started()->set_machine_tests(kind);
    Do(std::move(started));
  }
  bool IsAskedToTest(const std::string& node_id) const {
    return DesiredFor(state_, node_id).has_machine_test();
  }
  // Job "j" runs on n0 and n1, whose tests have passed.
  void RunTested() {
    Do(Submitted("j", SpecOf(2, 2, 30)));
    for (const char* node_id : {"n0", "n1"}) {
      Join(node_id, "a");
      Do(Tested(node_id, "a"));
    }
    Do(Passed("j", 1, "n0"));
    Do(Passed("j", 1, "n1"));
    ASSERT_EQ(job().stage(), v1::STAGE_RUN);
  }
  // Rank 0 fails on n0, and every process is gone.
  void FailOnce(int signal) {
    const int64_t attempt = job().attempt();
    Event failed = Failed(attempt, 0, "n0", telemetry::FAILURE_CLASS_EXITED);
    failed.mutable_rank_failed()->mutable_failure()->set_signal(signal);
    Do(failed);
    Do(Fenced(attempt, "n0", {}));
    Do(Fenced(attempt, "n1", {}));
  }
};

TEST_F(MachineTestsTest, AMachineGetsItsFirstRankWhenItsTestHasPassed) {
  Do(Submitted("j", SpecOf(2, 2, 30)));
  Join("n0", "a");
  Join("n1", "a");
  EXPECT_TRUE(IsAskedToTest("n0"));
  EXPECT_EQ(Node("n0").test().why(), "its agent started");
  EXPECT_EQ(job().stage(), v1::STAGE_QUEUED);
  EXPECT_TRUE(absl::StrContains(job().message(), "n0 is being tested")) << job().message();
  Do(Tested("n0", "a"));
  EXPECT_FALSE(IsAskedToTest("n0"));
  EXPECT_EQ(job().stage(), v1::STAGE_QUEUED);
  Do(Tested("n1", "a"));
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
}

TEST_F(MachineTestsTest,
       AMachineThatFailsIsQuarantinedWithTheEvidenceAndTestedBeforeItIsUsedAgain) {
  Join("n0", "a");
  Do(Tested("n0", "a", "memory: 3 bytes of 64 MiB read back wrong"));
  ASSERT_TRUE(Node("n0").has_quarantine());
  EXPECT_EQ(Node("n0").quarantine().evidence(),
            "machine test: memory: 3 bytes of 64 MiB read back wrong");
  EXPECT_FALSE(IsAskedToTest("n0"));
  Do(Uncordoned("n0"));
  EXPECT_TRUE(IsAskedToTest("n0"));
}

TEST_F(MachineTestsTest, ResultsOfAnotherStartOrAnotherTestDoNotCount) {
  Join("n0", "a");
  const Event of_a = Tested("n0", "a");
  Join("n0", "b");
  EXPECT_FALSE(Do(of_a));
  Event older = of_a;
  older.mutable_machine_tested()->set_incarnation("b");
  EXPECT_FALSE(Do(older)) << "its id is that of the test before";
  EXPECT_TRUE(Do(Tested("n0", "b")));
}

TEST_F(MachineTestsTest, AnAgentThatCannotTestCountsAsTested) {
  Do(Submitted("j", SpecOf(1, 1, 30)));
  Do(Joined("n0", "a", 2));
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
}

TEST_F(MachineTestsTest, AKilledWorkerCostsNoTestButASecondFailureThereDoes) {
  RunTested();
  FailOnce(9);
  EXPECT_FALSE(IsAskedToTest("n0"));
  BackoffElapsed(1);
  ASSERT_EQ(job().attempt(), 2);
  FailOnce(9);
  EXPECT_TRUE(IsAskedToTest("n0"));
  EXPECT_FALSE(IsAskedToTest("n1"));
}

TEST_F(MachineTestsTest, ASegmentationFaultIsTestedAndTheJobWaitsForTheResult) {
  RunTested();
  Join("n2", "a");
  Do(Tested("n2", "a"));
  FailOnce(11);
  BackoffElapsed(1);
  EXPECT_TRUE(IsAskedToTest("n0"));
  EXPECT_EQ(job().stage(), v1::STAGE_WAIT_FOR_SLOTS);
  EXPECT_EQ(job().reason(), "TestingMachines");
  EXPECT_EQ(job().message(), "waits for the tests of n0");
  EXPECT_EQ(DesiredFor(state_, "n0").machine_test().directories(0), "/state/jobs/j/checkpoints");
  Do(Tested("n0", "a"));
  EXPECT_EQ(job().stage(), v1::STAGE_RUN);
  EXPECT_EQ(PlacedNodes()[0], "n0");
}

TEST_F(MachineTestsTest, TheJobGoesOnElsewhereIfTheMachineFailsItsTest) {
  RunTested();
  Join("n2", "a");
  Do(Tested("n2", "a"));
  FailOnce(11);
  BackoffElapsed(1);
  Do(Tested("n0", "a", "training: core 3: another digest"));
  EXPECT_TRUE(Node("n0").has_quarantine());
  EXPECT_EQ(PlacedNodes(), (std::vector<std::string>{"n2", "n2", "n1", "n1"}));
}

TEST_F(MachineTestsTest, AMachineWhereAnotherJobRunsIsTestedWhenThatHasEnded) {
  Do(Submitted("j", SpecOf(1, 1, 30)));
  Do(Submitted("k", SpecOf(1, 1, 30)));
  Join("n0", "a");
  Do(Tested("n0", "a"));
  Do(Passed("j", 1, "n0"));
  Do(Passed("k", 1, "n0"));
  Event failed = Failed(1, 0, "n0", megascale::telemetry::v1::FAILURE_CLASS_HUNG);
  Do(failed);
  Do(Fenced(1, "n0", {}));
  BackoffElapsed(1);
  EXPECT_FALSE(IsAskedToTest("n0")) << "never beside running ranks";
  EXPECT_EQ(job().stage(), v1::STAGE_RUN) << "the job does not wait for the other one's end";
  for (const char* job_id : {"j", "k"}) {
    Event cancelled = Cancelled(false);
    cancelled.mutable_cancel_requested()->set_job_id(job_id);
    Do(cancelled);
    Event timed_out;
    timed_out.mutable_stage_timed_out()->set_job_id(job_id);
    timed_out.mutable_stage_timed_out()->set_attempt(FindJob(state_, job_id)->attempt());
    timed_out.mutable_stage_timed_out()->set_stage(v1::STAGE_STOP);
    Do(timed_out);
  }
  EXPECT_TRUE(IsAskedToTest("n0"));
}

TEST_F(MachineTestsTest, AnAgentThatGivesNoResultIsGivenUp) {
  Join("n0", "a");
  const std::vector<Timer> timers = TimersFor(state_);
  ASSERT_EQ(timers.size(), 1u);
  Do(timers[0].when_due);
  ASSERT_TRUE(Node("n0").has_quarantine());
  EXPECT_TRUE(absl::StrContains(Node("n0").quarantine().evidence(), "gave no result within 10m"));
  EXPECT_TRUE(TimersFor(state_).empty());
}

TEST_F(MachineTestsTest, ADriverThatDoesNotTestUsesEveryMachine) {
  Do(Submitted("j", SpecOf(1, 1, 30)));
  Join("n0", "a");
  ASSERT_EQ(job().stage(), v1::STAGE_QUEUED);
  Event started;
  started.mutable_driver_started()->set_rules(kRules);
  Do(started);
  EXPECT_FALSE(IsAskedToTest("n0"));
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
}

TEST_F(MachineTestsTest, TestsThatAreTurnedOnLetRunningJobsGoOnAndOthersBegin) {
  TurnTests(megascale::agent::v1::TEST_KIND_UNSPECIFIED);
  Do(Submitted("j", SpecOf(1, 1, 30)));
  Join("n0", "a");
  Do(Passed("j", 1, "n0"));
  ASSERT_EQ(job().stage(), v1::STAGE_RUN);
  TurnTests(megascale::agent::v1::TEST_KIND_QUICK);
  EXPECT_FALSE(IsAskedToTest("n0"));
  Do(Submitted("k", SpecOf(1, 1, 30)));
  EXPECT_EQ(FindJob(state_, "k")->stage(), v1::STAGE_PREFLIGHT);
  Do(Lost("n0", "a"));  // and with it all processes
  Do(Joined("n0", "a", 2));
  EXPECT_TRUE(IsAskedToTest("n0"));
}

// A driver of an older version did not note that their agents can test them.
TEST_F(MachineTestsTest, MachinesAreTestedOnceTheirAgentsSayThatTheyCan) {
  Do(Joined("n0", "a", 2));
  Do(Submitted("j", SpecOf(1, 1, 30)));
  Do(Passed("j", 1, "n0"));
  Do(Joined("n1", "a", 2));
  ASSERT_FALSE(IsTestDue(Node("n0")) || IsTestDue(Node("n1")));
  Join("n0", "a");
  Join("n1", "a");
  EXPECT_EQ(job().stage(), v1::STAGE_RUN) << "it goes on";
  EXPECT_TRUE(IsTestDue(Node("n0")));
  EXPECT_FALSE(IsAskedToTest("n0")) << "while the job runs";
  EXPECT_TRUE(IsAskedToTest("n1"));
  Do(Tested("n1", "a"));
  Join("n1", "a");
  EXPECT_FALSE(IsTestDue(Node("n1"))) << "it is connected again";
}

TEST_F(MachineTestsTest, AMachineThatIsLostWhenTestsAreTurnedOnIsTestedOnceItIsBack) {
  TurnTests(megascale::agent::v1::TEST_KIND_UNSPECIFIED);
  Join("n0", "a");
  Do(Lost("n0", "a"));
  TurnTests(megascale::agent::v1::TEST_KIND_QUICK);
  EXPECT_FALSE(IsTestDue(Node("n0")));
  Join("n0", "a");
  EXPECT_TRUE(IsAskedToTest("n0"));
  Do(Tested("n0", "a"));
  Do(Lost("n0", "a"));
  Event restored;  // the copy may lack later results
  restored.mutable_driver_started()->set_rules(kRules);
  restored.mutable_driver_started()->set_epoch(state_.epoch() + 1);
  restored.mutable_driver_started()->set_restored(true);
  restored.mutable_driver_started()->set_machine_tests(megascale::agent::v1::TEST_KIND_QUICK);
  Do(restored);
  Join("n0", "a");
  EXPECT_TRUE(IsAskedToTest("n0"));
}

// Tests are off now, and the agent cannot end the one that the driver before this one wanted.
TEST_F(MachineTestsTest, AJobIsPlacedElsewhereWhileATestHangs) {
  TurnTests(megascale::agent::v1::TEST_KIND_UNSPECIFIED);
  Join("n0", "a");
  Do(Submitted("j", SpecOf(1, 1, 30)));
  ASSERT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
  Event busy;
  busy.mutable_node_busy()->set_node_id("n0");
  busy.mutable_node_busy()->set_incarnation("a");
  busy.mutable_node_busy()->set_busy(true);
  EXPECT_TRUE(Do(busy));
  EXPECT_FALSE(Do(busy)) << "it repeats what is known";
  Do(Fenced(1, "n0", {}));
  EXPECT_EQ(job().stage(), v1::STAGE_WAIT_FOR_SLOTS);
  EXPECT_TRUE(absl::StrContains(job().message(), "n0 has a test that hangs")) << job().message();
  busy.mutable_node_busy()->set_busy(false);
  Do(busy);
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
  EXPECT_EQ(job().attempt(), 2);
}

// --- counts -------------------------------------------------------------------------------------

// Job "j" of 5 ranks on the nodes a to e, with f beside them. It waits for its backoff, in which
// nobody counts its nodes: e is lost, and a, b, c and d are fenced, in this order.
class FencedInBackoffTest : public DriverCoreTest {
 protected:
  void SetUp() override {
    DriverCoreTest::SetUp();
    Do(Submitted("j", SpecOf(5, 1, 30)));
    for (const char* node_id : {"a", "b", "c", "d", "e"}) Do(Joined(node_id, "1", 1));
    for (const char* node_id : {"a", "b", "c", "d", "e"}) Do(Passed("j", 1, node_id));
    Do(Joined("f", "1", 1));
    Do(Lost("e", "1"));
    for (const char* node_id : {"a", "b", "c", "d"}) Do(Fenced(1, node_id, {}));
    ASSERT_EQ(job().stage(), v1::STAGE_BACKOFF);
    Do(Lost("a", "1"));
    Do(Lost("d", "1"));
    Do(Joined("e", "2", 1));
    Do(Fenced(1, "e", {}));
    Do(Joined("d", "2", 1));
    Do(Fenced(1, "d", {}));
    // As many as before, and the same node is the newest.
    ASSERT_THAT(job().fenced(), SizeIs(4));
    ASSERT_EQ(job().fenced(3).node_id(), "d");
  }
};

TEST_F(FencedInBackoffTest, ANodeThatWasFencedInPlaceOfAnotherCounts) {
  BackoffElapsed(1);
  EXPECT_EQ(job().attempt(), 2) << "b, c, d and e are fenced, and a is lost";
}

TEST_F(FencedInBackoffTest, ANodeThatWasFencedBeforeItWasLostDoesNotCount) {
  Do(Joined("a", "2", 1));
  Do(Lost("e", "2"));
  BackoffElapsed(1);
  EXPECT_EQ(job().stage(), v1::STAGE_WAIT_FOR_SLOTS) << "a may still have processes of attempt 1";
  EXPECT_THAT(UnfencedNodesOf(state_, job()), ElementsAre("a"));
  Do(Fenced(1, "a", {}));
  EXPECT_EQ(job().attempt(), 2);
}

// A job of 6 ranks on the nodes a, b and c, all of which live.
class AttemptCountsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    job_.set_attempt(1);
    job_.set_stage(v1::STAGE_RUN);
    for (int rank = 0; rank < 6; ++rank) {
      auto* placement = job_.add_placements();
      placement->set_rank(rank);
      placement->set_node_id(std::string(1, static_cast<char>('a' + rank / 2)));
    }
    for (const char* node_id : {"a", "b", "c"}) {
      NodeRecord* node = AddNode(&state_, node_id);
      node->mutable_hello()->set_node_id(node_id);
      node->set_alive(true);
    }
  }
  void End(int rank) { job_.add_ended()->set_rank(rank); }
  void Fence(const std::string& node_id) { job_.add_fenced()->set_node_id(node_id); }
  // Expects these counts, and that they are what counting anew gives.
  void Expect(int unfenced, int running) {
    EXPECT_EQ(counts_.NumUnfenced(state_, job_, node_changes_), unfenced);
    EXPECT_EQ(counts_.NumRunning(job_), running);
    EXPECT_EQ(UnfencedNodesOf(state_, job_).size(), static_cast<size_t>(unfenced));
    EXPECT_EQ(AllGone(job_), running == 0);
  }

  DriverState state_;
  JobRecord job_;
  AttemptCounts counts_;
  int64_t node_changes_ = 0;
};

TEST_F(AttemptCountsTest, RanksEndAndNodesAreFencedOneAfterTheOther) {
  Expect(3, 6);
  End(0);
  End(5);
  Expect(3, 4);
  Fence("a");
  Expect(2, 3);
  End(1);  // on a fenced node, where it does not count any more
  Expect(2, 3);
  Fence("b");
  Fence("b");
  Fence("elsewhere");
  Expect(1, 1);
  End(4);
  Expect(1, 0);
}

TEST_F(AttemptCountsTest, NodesAreLostAndComeBack) {
  Expect(3, 6);
  FindNode(&state_, "b")->set_alive(false);
  ++node_changes_;
  Expect(2, 6);
  Fence("b");
  Expect(2, 4);
  FindNode(&state_, "b")->set_alive(true);
  ++node_changes_;
  Expect(2, 4);
  job_.clear_fenced();  // it came back: what was fenced counts no more
  Expect(3, 6);
}

TEST_F(AttemptCountsTest, SingleRanksAndNodesAreLookedUp) {
  End(2);
  job_.mutable_ended(0)->set_failed(true);
  End(9);  // a rank and a node that are not the job's
  Fence("b");
  Fence("elsewhere");
  for (int rank = -1; rank < 11; ++rank) {
    EXPECT_EQ(counts_.HasEnded(job_, rank), FindEnded(job_, rank) != nullptr) << rank;
  }
  for (const char* node_id : {"a", "b", "c", "elsewhere", "nowhere"}) {
    EXPECT_EQ(counts_.HasFenced(job_, node_id), IsFenced(job_, node_id)) << node_id;
  }
  EXPECT_EQ(counts_.NumFailed(job_), 1);
}

TEST_F(AttemptCountsTest, AnotherAttemptBeginsAnew) {
  End(0);
  Fence("a");
  Expect(2, 4);
  job_.set_attempt(2);
  job_.clear_ended();
  job_.clear_fenced();
  Expect(3, 6);
  job_.clear_placements();
  Expect(0, 0);
}

TEST_F(AttemptCountsTest, AFencedNodeThatIsTakenOutAndAnotherThatIsAddedAreNoticed) {
  Fence("a");
  Fence("b");
  Expect(1, 2);
  job_.mutable_fenced()->DeleteSubrange(0, 1);
  Fence("c");
  Expect(1, 2);
  EXPECT_EQ(UnfencedNodesOf(state_, job_).front(), "a");
  End(0);
  Expect(1, 1);
}

}  // namespace
}  // namespace megascale::driver
