// The state machine lets machines exchange bytes: when, and what follows.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/testing/test_core.h"
#include "controlplane/driver/exchanges/exchanges.h"
#include "controlplane/driver/exchanges/rounds.h"

namespace megascale::driver {
namespace {

using megascale::agent::v1::MachineTest;

class MachineExchangesTest : public DriverCoreTest {
 protected:
  void SetUp() override { StartDriver(megascale::agent::v1::TEST_KIND_QUICK); }
  void StartDriver(megascale::agent::v1::TestKind kind, int rules = kRules) {
    Event started;
    started.mutable_driver_started()->set_rules(rules);
    started.mutable_driver_started()->set_machine_tests(kind);
    Do(std::move(started));
  }
  const NodeRecord& Node(const std::string& node_id) const { return *FindNode(state_, node_id); }
  void Join(const std::string& node_id, const std::string& incarnation = "a",
            const std::string& machine_id = "machine") {
    Event joined = Joined(node_id, incarnation, 2);
    joined.mutable_node_joined()->mutable_hello()->set_tests_machine(true);
    joined.mutable_node_joined()->mutable_hello()->set_tests_exchange(true);
    joined.mutable_node_joined()->mutable_hello()->set_machine_id(machine_id);
    Do(joined);
    PassOwnTest(node_id);
  }
  void PassOwnTest(const std::string& node_id) {
    Event event;
    auto* tested = event.mutable_machine_tested();
    tested->set_node_id(node_id);
    tested->set_incarnation(Node(node_id).hello().incarnation());
    tested->mutable_test()->set_id(Node(node_id).test().test().id());
    tested->mutable_test()->set_state(MachineTest::STATE_PASSED);
    Do(event);
  }
  std::string With(const std::string& node_id) const { return Node(node_id).exchanges().with(); }
  // A member's part of its exchange ended.
  bool End(const std::string& node_id, const std::string& failure = "") {
    Event event;
    auto* tested = event.mutable_exchange_tested();
    tested->set_node_id(node_id);
    tested->set_incarnation(Node(node_id).hello().incarnation());
    tested->mutable_test()->set_id(DesiredFor(state_, node_id).machine_test().id());
    tested->mutable_test()->set_state(failure.empty() ? MachineTest::STATE_PASSED
                                                      : MachineTest::STATE_FAILED);
    tested->mutable_test()->add_results()->set_failure(failure);
    if (failure.empty()) tested->mutable_test()->mutable_results(0)->set_bytes_per_second(1e9);
    return Do(event);
  }
  // Ends all exchanges that run; those of a machine in `broken` fail.
  void EndAll(const std::set<std::string>& broken = {}) {
    const std::vector<v1::Exchange> running(state_.exchanges().begin(), state_.exchanges().end());
    for (const v1::Exchange& exchange : running) {
      const auto& members = exchange.members();
      const bool fails = std::any_of(members.begin(), members.end(), [&](const auto& member) {
        return broken.count(member.node_id()) > 0;
      });
      for (const auto& member : members) {
        End(member.node_id(), fails ? With(member.node_id()) + " does not connect" : "");
      }
    }
  }
  // Lets machines join, and ends their exchanges until only rounds run, or nothing.
  void JoinAndPair(int count) {
    for (int i = 0; i < count; ++i) Join(absl::StrCat("n", i));
    EndPairs();
  }
  void EndPairs() {
    const auto is_pair = [](const v1::Exchange& exchange) { return !IsRound(exchange); };
    while (std::any_of(state_.exchanges().begin(), state_.exchanges().end(), is_pair)) EndAll();
  }
  const megascale::control::v1::ExchangeResult& Round(const std::string& node_id) const {
    return Node(node_id).exchanges().round();
  }
  // Submits job j, which takes three machines.
  void SubmitToThree() { Do(Submitted("j", SpecOf(3, 2, 30))); }
  void RunOnThree() {
    SubmitToThree();
    for (const char* node_id : {"n0", "n1", "n2"}) Do(Passed("j", 1, node_id));
    ASSERT_EQ(job().stage(), v1::STAGE_RUN);
  }
  void JoinAndExchange(int count, const std::set<std::string>& broken = {}) {
    for (int i = 0; i < count; ++i) Join(absl::StrCat("n", i));
    while (state_.exchanges_size() > 0) EndAll(broken);
  }
};

TEST_F(MachineExchangesTest, MachinesExchangeAfterTheirOwnTestsAndThenGetRanks) {
  Do(Submitted("j", SpecOf(2, 2, 30)));
  Join("n0");
  EXPECT_EQ(With("n0"), "") << "nobody is there";
  Join("n1");
  EXPECT_EQ(With("n0"), "n1");
  EXPECT_EQ(With("n1"), "n0");
  const auto asked = DesiredFor(state_, "n0").machine_test();
  ASSERT_TRUE(asked.has_exchange());
  EXPECT_EQ(asked.id(), DesiredFor(state_, "n1").machine_test().id());
  EXPECT_EQ(job().stage(), v1::STAGE_QUEUED);
  EXPECT_TRUE(absl::StrContains(job().message(), "n0 is being tested")) << job().message();
  End("n0");
  EXPECT_FALSE(End("n0")) << "it has told its result";
  EXPECT_EQ(job().stage(), v1::STAGE_QUEUED);
  End("n1");
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
  EXPECT_FALSE(DesiredFor(state_, "n0").has_machine_test());
  ASSERT_EQ(Node("n0").exchanges().results_size(), 1);
  EXPECT_EQ(Node("n0").exchanges().results(0).node_id(), "n1");
  EXPECT_EQ(Node("n0").exchanges().results(0).bytes_per_second(), 1e9);
  EXPECT_GT(Node("n0").exchanges().results(0).ended_at().seconds(), 0);
}

TEST_F(MachineExchangesTest, TheMachineThatFailsWithTwoIsQuarantinedWithTheEvidence) {
  JoinAndExchange(3, {"n1"});
  EXPECT_FALSE(Node("n0").has_quarantine());
  EXPECT_FALSE(Node("n2").has_quarantine());
  ASSERT_TRUE(Node("n1").has_quarantine());
  const std::string& evidence = Node("n1").quarantine().evidence();
  EXPECT_TRUE(absl::StrContains(evidence, "machine test: exchanges failed with n0: ")) << evidence;
  EXPECT_TRUE(absl::StrContains(evidence, "with n2: ")) << evidence;
  EXPECT_TRUE(absl::StrContains(evidence, "n0 passed with n2")) << evidence;
}

TEST_F(MachineExchangesTest, TwoMachinesThatFailTogetherGoOnAndNobodyIsNamed) {
  JoinAndExchange(2, {"n1"});
  EXPECT_FALSE(Node("n0").has_quarantine());
  EXPECT_FALSE(Node("n1").has_quarantine());
  Do(Submitted("j", SpecOf(2, 2, 30)));
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT) << "no third machine can tell";
  Do(Cancelled(false));
  for (const char* node_id : {"n0", "n1"}) Do(Fenced(1, node_id, {}));
  ASSERT_TRUE(IsTerminal(job()));
  Join("n2");
  while (state_.exchanges_size() > 0) EndAll({"n1"});
  EXPECT_TRUE(Node("n1").has_quarantine());
}

TEST_F(MachineExchangesTest, AMachineOutOfQuarantineIsTestedAndExchangesAgain) {
  JoinAndExchange(3, {"n1"});
  Do(Uncordoned("n1"));
  EXPECT_FALSE(Node("n1").has_exchanges());
  PassOwnTest("n1");
  EXPECT_EQ(With("n1"), "n0");
  while (state_.exchanges_size() > 0) EndAll();
  EXPECT_FALSE(Node("n1").has_quarantine());
  EXPECT_EQ(Node("n1").exchanges().results_size(), 2);
}

TEST_F(MachineExchangesTest, MachinesWithRanksDoNotExchange) {
  JoinAndExchange(2);
  Do(Submitted("j", SpecOf(2, 2, 30)));
  for (const char* node_id : {"n0", "n1"}) Do(Passed("j", 1, node_id));
  ASSERT_EQ(job().stage(), v1::STAGE_RUN);
  Join("n2");
  EXPECT_EQ(With("n2"), "");
  // A failure without relation to the network: the job goes on at once.
  KillRank(1);
  BackoffElapsed(1);
  EXPECT_EQ(With("n2"), "") << "n0 and n1 hold the job's memory";
  EXPECT_EQ(job().stage(), v1::STAGE_RUN);
  Do(Cancelled(false));
  for (const char* node_id : {"n0", "n1"}) Do(Fenced(2, node_id, {}));
  EXPECT_EQ(With("n2"), "n0");
}

TEST_F(MachineExchangesTest, TheMachinesOfAJobWhoseRanksLostEachOtherExchangeAndTheJobWaits) {
  JoinAndExchange(3);
  Do(Submitted("j", SpecOf(2, 2, 30)));
  for (const char* node_id : {"n0", "n1"}) Do(Passed("j", 1, node_id));
  Do(Failed(1, 0, "n0", megascale::telemetry::v1::FAILURE_CLASS_ABORTED));
  Do(Fenced(1, "n0", {{0, 5}, {1, 5}}));
  EXPECT_EQ(state_.exchanges_size(), 0) << "a process may be left on n1";
  Do(Fenced(1, "n1", {{2, 5}, {3, 5}}));
  EXPECT_EQ(state_.exchanges_size(), 1);
  EXPECT_TRUE(absl::StrContains(Node("n0").exchanges().why(), "job j: ")) << With("n0");
  BackoffElapsed(1);
  EXPECT_EQ(job().stage(), v1::STAGE_WAIT_FOR_SLOTS);
  EXPECT_EQ(job().reason(), "TestingMachines");
  while (state_.exchanges_size() > 0) EndAll({"n1"});
  EXPECT_TRUE(Node("n1").has_quarantine());
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_EQ(PlacedNodes(), (std::vector<std::string>{"n0", "n0", "n2", "n2"}));
}

TEST_F(MachineExchangesTest, AFailureDemandsExchangesOnlyUntilTheyHaveEnded) {
  JoinAndExchange(3);
  Do(Submitted("j", SpecOf(2, 2, 30)));
  for (const char* node_id : {"n0", "n1"}) Do(Passed("j", 1, node_id));
  Do(Failed(1, 0, "n0", megascale::telemetry::v1::FAILURE_CLASS_ABORTED));
  Do(Fenced(1, "n0", {{0, 5}, {1, 5}}));
  Do(Fenced(1, "n1", {{2, 5}, {3, 5}}));
  EXPECT_TRUE(Node("n0").exchanges().after_failure());
  while (state_.exchanges_size() > 0) EndAll();
  EXPECT_FALSE(Node("n0").exchanges().after_failure());
  EXPECT_FALSE(Node("n1").exchanges().after_failure());
  BackoffElapsed(1);
  ASSERT_EQ(job().attempt(), 2);
  for (const char* node_id : {"n0", "n1"}) Do(Passed("j", 2, node_id));
  KillRank(2);
  Do(Fenced(2, "n1", {{2, 5}, {3, 5}}));
  Join("n3");
  while (state_.exchanges_size() > 0) {
    EXPECT_EQ(With("n0") + With("n1"), "") << "they hold memory for the sake of another machine";
    EndAll();
  }
}

TEST_F(MachineExchangesTest, AnExchangeIsDroppedWithAMachineThatIsLostOrStartsAgain) {
  Join("n0");
  Join("n1");
  ASSERT_EQ(With("n0"), "n1");
  Do(Lost("n1", "a"));
  EXPECT_EQ(With("n0"), "");
  EXPECT_FALSE(DesiredFor(state_, "n0").has_machine_test());
  EXPECT_EQ(Node("n0").exchanges().results_size(), 0);
  Join("n1", "b");
  EXPECT_EQ(With("n0"), "n1");
  Do(Evicted("n0", "memory errors"));
  EXPECT_EQ(With("n1"), "");
}

// n0 failed only because of n1 and n2, which are in order once they have started again.
TEST_F(MachineExchangesTest, ResultsWithAMachineThatStartsAgainSpeakAgainstNobody) {
  JoinAndExchange(3, {"n1", "n2"});
  ASSERT_EQ(Node("n0").exchanges().results_size(), 2);
  Do(Submitted("j", SpecOf(1, 1, 30)));
  ASSERT_EQ(PlacedNodes(), (std::vector<std::string>{"n0"})) << "it cannot exchange again";
  for (const char* node_id : {"n1", "n2"}) {
    Join(node_id, "b");
    while (state_.exchanges_size() > 0) EndAll();
  }
  for (const char* node_id : {"n0", "n1", "n2"}) {
    EXPECT_FALSE(Node(node_id).has_quarantine()) << node_id;
    EXPECT_FALSE(HasFailed(Node(node_id))) << node_id;
  }
}

TEST_F(MachineExchangesTest, ResultsWithAMachineThatIsTestedAgainOrForgottenAreDropped) {
  JoinAndExchange(3, {"n1"});
  ASSERT_EQ(Node("n0").exchanges().results_size(), 2);
  Do(Uncordoned("n1"));
  ASSERT_EQ(Node("n0").exchanges().results_size(), 1);
  EXPECT_EQ(Node("n0").exchanges().results(0).node_id(), "n2");
  Do(Lost("n2", "a"));
  EXPECT_EQ(Node("n0").exchanges().results_size(), 1);
  Event forgotten;
  forgotten.mutable_nodes_forgotten()->add_node_ids("n2");
  Do(forgotten);
  EXPECT_EQ(Node("n0").exchanges().results_size(), 0);
}

TEST_F(MachineExchangesTest, WhatAgentsOfOneMachineFoundCountsOnlyWhileThereIsNoOther) {
  Join("n0", "a", "one");
  Join("n1", "a", "one");
  EXPECT_EQ(With("n0"), "n1");
  EndAll();
  ASSERT_EQ(Node("n0").exchanges().results_size(), 1);
  Join("n2", "a", "two");
  EXPECT_EQ(With("n2"), "n0");
  EXPECT_EQ(With("n1"), "");
  EXPECT_EQ(Node("n0").exchanges().results_size(), 0);
  EXPECT_EQ(Node("n1").exchanges().results_size(), 0);
  while (state_.exchanges_size() > 0) EndAll();
  EXPECT_EQ(With("n1"), "");
  EXPECT_EQ(Node("n1").exchanges().results(0).node_id(), "n2");
}

TEST_F(MachineExchangesTest, AnExchangeBetweenAgentsOfOneMachineEndsWhenAnotherMachineJoins) {
  Join("n0", "a", "one");
  Join("n1", "a", "one");
  ASSERT_EQ(With("n0"), "n1");
  Join("n2", "a", "two");
  EXPECT_EQ(With("n2"), "n0");
}

TEST_F(MachineExchangesTest, TheMinimumThatHeldAtTheEndIsKeptWithTheResult) {
  Event started;
  started.mutable_driver_started()->set_rules(kRules);
  started.mutable_driver_started()->set_machine_tests(megascale::agent::v1::TEST_KIND_QUICK);
  started.mutable_driver_started()->set_exchange_rate(4e8);
  Do(started);
  JoinAndExchange(2);
  EXPECT_EQ(Node("n0").exchanges().results(0).rate_min(), 2e8);
  started.mutable_driver_started()->set_exchange_rate(4e12);
  Do(started);
  Join("n2");
  EndAll();
  EXPECT_EQ(Node("n0").exchanges().results(0).rate_min(), 2e8);
  EXPECT_TRUE(HasPassed(Node("n0")));
  EXPECT_TRUE(HasFailed(Node("n2")));
}

TEST_F(MachineExchangesTest, NoMoreExchangesRunAtOnceThanTheStoreHasRoomFor) {
  for (int i = 0; i < 2 * kExchangesAtOnce + 4; ++i) Join(absl::StrCat("n", i));
  EXPECT_EQ(state_.exchanges_size(), kExchangesAtOnce);
  const std::string a = state_.exchanges(0).members(0).node_id();
  const std::string b = state_.exchanges(0).members(1).node_id();
  End(a);
  End(b);
  EXPECT_EQ(state_.exchanges_size(), kExchangesAtOnce) << "the next pair takes its place";
  events_.clear();  // to replay so many takes long
  states_.clear();
}

TEST_F(MachineExchangesTest, ResultsOfAnotherExchangeDoNotCount) {
  Join("n0");
  Join("n1");
  Event old;
  auto* tested = old.mutable_exchange_tested();
  tested->set_node_id("n0");
  tested->set_incarnation("a");
  tested->mutable_test()->set_id(DesiredFor(state_, "n0").machine_test().id());
  tested->mutable_test()->set_state(MachineTest::STATE_RUNNING);
  EXPECT_FALSE(Do(old)) << "it has not ended";
  tested->mutable_test()->set_state(MachineTest::STATE_PASSED);
  Event stranger = old;
  stranger.mutable_exchange_tested()->set_incarnation("b");
  EXPECT_FALSE(Do(stranger));
  StartDriver(megascale::agent::v1::TEST_KIND_QUICK);
  EXPECT_FALSE(Do(old)) << "a new driver asks both machines anew";
  EXPECT_EQ(With("n0"), "n1");
}

TEST_F(MachineExchangesTest, AnAgentThatGivesNoResultFailedAndTheOtherIsNotBlamed) {
  Join("n0");
  Join("n1");
  End("n0");
  const std::vector<Timer> timers = TimersFor(state_);
  ASSERT_EQ(timers.size(), 1u);
  Do(timers[0].when_due);
  EXPECT_EQ(With("n0"), "");
  ASSERT_EQ(Node("n0").exchanges().results_size(), 1);
  EXPECT_EQ(Node("n0").exchanges().results(0).failure(), "");
  EXPECT_EQ(Node("n0").exchanges().results(0).note(), "n1: its agent gave no result within 1m30s");
  EXPECT_EQ(Node("n1").exchanges().results(0).failure(),
            "n1: its agent gave no result within 1m30s");
  EXPECT_FALSE(Node("n1").has_quarantine()) << "a pair names nobody";
  EXPECT_TRUE(TimersFor(state_).empty());
}

TEST_F(MachineExchangesTest, AnAgentThatCannotExchangeCountsAsTested) {
  Do(Submitted("j", SpecOf(1, 1, 30)));
  Event joined = Joined("n0", "a", 2);
  joined.mutable_node_joined()->mutable_hello()->set_tests_machine(true);
  Do(joined);
  Join("n1");
  PassOwnTest("n0");
  EXPECT_EQ(With("n1"), "");
  EXPECT_FALSE(Node("n0").has_exchanges());
}

TEST_F(MachineExchangesTest, AnOlderLogHasNoExchangesAndADriverThatDoesNotTestDropsThem) {
  StartDriver(megascale::agent::v1::TEST_KIND_QUICK, 6);
  Join("n0");
  Join("n1");
  EXPECT_EQ(state_.exchanges_size(), 0);
  StartDriver(megascale::agent::v1::TEST_KIND_QUICK);
  Join("n2");
  Join("n3");
  EXPECT_EQ(With("n2"), "n3");
  StartDriver(megascale::agent::v1::TEST_KIND_UNSPECIFIED);
  EXPECT_EQ(state_.exchanges_size(), 0);
  EXPECT_FALSE(Node("n2").has_exchanges());
}

// --- rounds -----------------------------------------------------------------------------------

TEST_F(MachineExchangesTest, NewMachinesExchangeAllToAllOnceAfterTheirPairs) {
  JoinAndPair(4);
  ASSERT_EQ(state_.exchanges_size(), 1);
  EXPECT_EQ(With("n0"), "n1, n2, n3");
  const auto asked = DesiredFor(state_, "n3").machine_test();
  EXPECT_EQ(asked.exchange().node_ids_size(), 4);
  EXPECT_EQ(asked.id(), DesiredFor(state_, "n0").machine_test().id());
  SubmitToThree();
  EXPECT_EQ(job().stage(), v1::STAGE_QUEUED) << "no rank starts beside a test";
  for (const char* node_id : {"n0", "n1", "n2"}) End(node_id);
  EXPECT_EQ(job().stage(), v1::STAGE_QUEUED);
  EXPECT_FALSE(Node("n0").exchanges().has_round());
  End("n3");
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
  EXPECT_EQ(state_.exchanges_size(), 0);
  EXPECT_EQ(Round("n3").node_ids_size(), 3);
  EXPECT_EQ(Round("n3").bytes_per_second(), 1e9);
  EXPECT_GT(Round("n3").ended_at().seconds(), 0);
}

TEST_F(MachineExchangesTest, ARoundThatFailsIsKeptNamesNobodyAndIsNotRepeated) {
  JoinAndPair(4);
  End("n0");
  End("n1", "block 1 from n0: 1 byte of 2 MiB read back wrong");
  End("n2", "n3 stops in the middle");
  End("n3", "n2 stops in the middle");
  EXPECT_EQ(state_.exchanges_size(), 0);
  EXPECT_EQ(Judge(Round("n0")), ExchangeVerdict::kPassed);
  EXPECT_EQ(Judge(Round("n1")), ExchangeVerdict::kFailed);
  for (const char* node_id : {"n0", "n1", "n2", "n3"}) {
    EXPECT_FALSE(Node(node_id).has_quarantine()) << node_id;
  }
  SubmitToThree();
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT) << "no other round, and no wait";
  EXPECT_EQ(state_.exchanges_size(), 0);
}

TEST_F(MachineExchangesTest, ASlowRoundOfMachinesThatAreFastInPairsIsShown) {
  Event started;
  started.mutable_driver_started()->set_rules(kRules);
  started.mutable_driver_started()->set_machine_tests(megascale::agent::v1::TEST_KIND_QUICK);
  started.mutable_driver_started()->set_exchange_rate(1e9);
  Do(started);
  JoinAndPair(3);
  started.mutable_driver_started()->set_exchange_rate(4e9);
  Do(started);
  EndAll();  // with 1e9 bytes per second
  EXPECT_EQ(Round("n1").rate_min(), 2e9);
  EXPECT_EQ(Judge(Round("n1")), ExchangeVerdict::kFailed);
  EXPECT_EQ(Round("n1").failure(), "");
  EXPECT_FALSE(Node("n1").has_quarantine());
  EXPECT_EQ(state_.exchanges_size(), 0);
}

TEST_F(MachineExchangesTest, AMemberThatGivesNoResultInTimeEndsTheRound) {
  JoinAndPair(3);
  End("n0");
  End("n1", "n2 does not connect");
  const std::vector<Timer> timers = TimersFor(state_);
  ASSERT_EQ(timers.size(), 1u);
  Do(timers[0].when_due);
  EXPECT_EQ(state_.exchanges_size(), 0);
  EXPECT_EQ(Round("n2").failure(), "its agent gave no result within 1m30s");
  EXPECT_EQ(Round("n1").note(), "n2: its agent gave no result within 1m30s");
  EXPECT_EQ(Judge(Round("n0")), ExchangeVerdict::kPassed);
  EXPECT_FALSE(Node("n2").has_quarantine());
}

TEST_F(MachineExchangesTest, AJobWaitsForTheRoundOfTheMachinesOnWhichItIsToStart) {
  Event late = Joined("n9", "a", 2);
  late.mutable_node_joined()->mutable_hello()->set_tests_machine(true);
  Do(late);  // its own test takes long
  JoinAndPair(3);
  EXPECT_EQ(state_.exchanges_size(), 0) << "n9 may take part";
  SubmitToThree();
  ASSERT_EQ(state_.exchanges_size(), 1);
  EXPECT_EQ(With("n0"), "n1, n2");
  EXPECT_EQ(job().stage(), v1::STAGE_QUEUED);
  EXPECT_TRUE(absl::StrContains(job().message(), "n0 is being tested")) << job().message();
  EndAll();
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
  EXPECT_EQ(state_.exchanges_size(), 0);
}

TEST_F(MachineExchangesTest, MachinesWithRanksTakePartInNoRound) {
  JoinAndPair(2);
  Do(Submitted("j", SpecOf(1, 1, 30)));
  ASSERT_EQ(PlacedNodes(), (std::vector<std::string>{"n0"}));
  Join("n2");
  Join("n3");
  EndPairs();
  EXPECT_EQ(With("n0"), "");
  EXPECT_EQ(With("n1"), "n2, n3");
  EndAll();
  EXPECT_EQ(With("n0"), "");
  Do(Cancelled(false));
  Do(Fenced(1, "n0", {}));
  EndPairs();
  EXPECT_FALSE(Node("n0").exchanges().has_round()) << "all others have had theirs";
}

// The second job would share a machine with the first one, which begins by the same event.
TEST_F(MachineExchangesTest, AJobThatBeginsByTheSameEventTakesNoPartInARound) {
  Event late = Joined("n9", "a", 2);
  late.mutable_node_joined()->mutable_hello()->set_tests_machine(true);
  Do(late);
  JoinAndPair(3);
  Do(Submitted("big", SpecOf(50, 2, 30)));
  Do(Submitted("j", SpecOf(1, 1, 30)));
  Do(Submitted("k", SpecOf(5, 1, 30)));
  ASSERT_EQ(job().stage(), v1::STAGE_QUEUED);
  Event cancelled = Cancelled(false);
  cancelled.mutable_cancel_requested()->set_job_id("big");
  Do(cancelled);
  EXPECT_EQ(PlacedNodes(), (std::vector<std::string>{"n0"}));
  EXPECT_EQ(state_.exchanges_size(), 0) << "n1 and n2 are left, a pair";
  EXPECT_EQ(FindJob(state_, "k")->stage(), v1::STAGE_PREFLIGHT);
}

TEST_F(MachineExchangesTest, MachinesOfAJobWhoseRanksLostEachOtherExchangeInARoundToo) {
  JoinAndPair(3);
  EndAll();
  RunOnThree();
  Do(Failed(1, 0, "n0", megascale::telemetry::v1::FAILURE_CLASS_ABORTED));
  for (const char* node_id : {"n0", "n1", "n2"}) Do(Fenced(1, node_id, {}));
  EXPECT_FALSE(Node("n0").exchanges().has_round());
  BackoffElapsed(1);
  EndPairs();
  EXPECT_EQ(With("n0"), "n1, n2");
  EXPECT_EQ(job().reason(), "TestingMachines");
  EndAll();
  EXPECT_EQ(job().attempt(), 2);
  EXPECT_FALSE(Node("n0").exchanges().after_failure());
}

TEST_F(MachineExchangesTest, ARoundIsDroppedWithAMachineThatIsLostAndTheOthersBeginAnother) {
  JoinAndPair(4);
  Do(Lost("n1", "a"));
  EXPECT_EQ(With("n0"), "n2, n3");
  Do(Evicted("n2", "memory errors"));
  EXPECT_EQ(With("n0"), "") << "two are a pair";
  EXPECT_FALSE(Node("n0").exchanges().has_round());
}

TEST_F(MachineExchangesTest, AnotherMachineBesideAgentsThatShareOneEndsWhatTheirRoundsSaid) {
  for (const char* node_id : {"n0", "n1", "n2"}) Join(node_id, "a", "one");
  while (state_.exchanges_size() > 0) EndAll();
  ASSERT_TRUE(Node("n0").exchanges().has_round());
  Join("n3", "a", "two");
  EXPECT_FALSE(Node("n0").exchanges().has_round());
}

TEST_F(MachineExchangesTest, AnOlderDriversLogHasNoRounds) {
  StartDriver(megascale::agent::v1::TEST_KIND_QUICK, 7);
  JoinAndPair(4);
  EXPECT_EQ(state_.exchanges_size(), 0);
  SubmitToThree();
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
}

// Ranks on n0 got no answer from n1: these two exchange, and n2, which only waited for them, does
// not.
class FailedLinkExchangeTest : public MachineExchangesTest {
 protected:
  void FailALink() {
    JoinAndPair(3);
    Do(Submitted("j", SpecOf(3, 2, 30)));
    while (job().stage() == v1::STAGE_QUEUED) EndAll();
    for (const char* node_id : {"n0", "n1", "n2"}) Do(Passed("j", 1, node_id));
    ASSERT_EQ(job().stage(), v1::STAGE_RUN);
    Event failed = Failed(1, 0, "n0", megascale::telemetry::v1::FAILURE_CLASS_ABORTED);
    failed.mutable_rank_failed()->mutable_failure()->add_unreached_ranks(2);
    Do(failed);
    for (const char* node_id : {"n0", "n1", "n2"}) Do(Fenced(1, node_id, {}));
    ASSERT_EQ(state_.failed_links_size(), 1);
    EXPECT_EQ(With("n0"), "n1");
    EXPECT_EQ(With("n2"), "");
    EXPECT_FALSE(Node("n2").exchanges().after_failure());
  }
};

TEST_F(FailedLinkExchangeTest, TheLinkIsForgottenIfTheExchangePasses) {
  FailALink();
  for (const char* node_id : {"n0", "n1"}) End(node_id);
  EXPECT_EQ(state_.failed_links_size(), 0);
}

TEST_F(FailedLinkExchangeTest, TheLinkIsKeptIfTheExchangeFails) {
  FailALink();
  for (const char* node_id : {"n0", "n1"}) End(node_id, "does not connect");
  EXPECT_EQ(state_.failed_links_size(), 1);
}

}  // namespace
}  // namespace megascale::driver
