// Nodes that jobs must leave: evicted by hand, or drained by their agent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controlplane/driver/core/desired_states.h"
#include "controlplane/driver/core/driver_core.h"
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
                "ago; this agent, which has another key, is taken once that one has been silent "
                "for too long"));
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

}  // namespace
}  // namespace megascale::driver
