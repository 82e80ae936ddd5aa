#include "controlplane/driver/exchanges/exchanges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "controlplane/driver/exchanges/testing/test_machine.h"

namespace megascale::driver {
namespace {

using megascale::agent::v1::MachineTest;
using megascale::agent::v1::TEST_KIND_FULL;
using megascale::agent::v1::TEST_KIND_QUICK;
using megascale::control::v1::ExchangeResult;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr double kFast = 100e6;
constexpr double kSlow = 10e6;

class ExchangesTest : public ::testing::Test {
 protected:
  // Adds machines n0, n1 … that want exchanges.
  void Add(int count) {
    for (int i = 0; i < count; ++i) AddMachine(Id(state_.nodes_size()), &state_);
  }
  v1::NodeRecord* Node(int index) { return state_.mutable_nodes(index); }
  static std::string Id(int index) { return "n" + std::to_string(index); }

  // Adds the result of an exchange to both machines.
  void Exchanged(int a, int b, double rate, const std::string& failure = "") {
    for (const auto& [node, other] : {std::pair(a, b), std::pair(b, a)}) {
      ExchangeResult* result = Node(node)->mutable_exchanges()->add_results();
      result->set_node_id(Id(other));
      result->set_bytes_per_second(rate);
      result->set_failure(failure);
    }
    const double minimum = MinimumExchangeRate(state_);
    for (v1::NodeRecord& node : *state_.mutable_nodes()) KeepMinimum(minimum, &node);
  }

  std::vector<std::pair<std::string, std::string>> Pairs(const std::vector<int>& holding = {}) {
    std::vector<FreeMachine> free;
    for (int i = 0; i < state_.nodes_size(); ++i) {
      const bool holds = std::find(holding.begin(), holding.end(), i) != holding.end();
      free.push_back({Node(i), holds});
    }
    return ChoosePairs(free, ShareOneMachine(state_), num_max_);
  }

  v1::DriverState state_;
  int num_max_ = kExchangesAtOnce;
};

// --- pairs ------------------------------------------------------------------------------------

TEST_F(ExchangesTest, MachinesThatHaveExchangedWithNobodyArePairedInTheirOrder) {
  Add(5);
  EXPECT_THAT(Pairs(), ElementsAre(Pair("n0", "n1"), Pair("n2", "n3")));
}

TEST_F(ExchangesTest, TheSecondExchangeIsWithAnotherMachine) {
  Add(4);
  Exchanged(0, 1, kFast);
  Exchanged(2, 3, kFast);
  EXPECT_THAT(Pairs(), ElementsAre(Pair("n0", "n2"), Pair("n1", "n3")));
}

TEST_F(ExchangesTest, WhoHasExchangedWithTwoWantsNoMoreButIsThereForOthers) {
  Add(4);
  Exchanged(0, 1, kFast);
  Exchanged(0, 2, kFast);
  Exchanged(1, 2, kFast);
  EXPECT_THAT(Pairs(), ElementsAre(Pair("n0", "n3")));
  state_.mutable_nodes()->RemoveLast();
  EXPECT_THAT(Pairs(), IsEmpty());
}

TEST_F(ExchangesTest, AMachineAloneWaits) {
  Add(1);
  EXPECT_THAT(Pairs(), IsEmpty());
}

TEST_F(ExchangesTest, ASuspectIsPairedWithAMachineThatPassed) {
  Add(5);
  Exchanged(0, 1, 0, "broken");
  Exchanged(2, 3, kFast);
  Exchanged(2, 4, kFast);
  Exchanged(3, 4, kFast);
  EXPECT_THAT(Pairs(), ElementsAre(Pair("n0", "n2"), Pair("n1", "n3")));
}

TEST_F(ExchangesTest, AMachineThatPassedWithNobodyIsPairedFourTimesAtMost) {
  Add(6);
  for (const int other : {1, 2, 3}) Exchanged(0, other, 0, "broken");
  EXPECT_TRUE(WantsExchange(*Node(0)));
  Exchanged(0, 4, 0, "broken");
  EXPECT_FALSE(WantsExchange(*Node(0)));
}

TEST_F(ExchangesTest, MachinesThatHoldMemoryOfAJobExchangeOnlyAfterAFailure) {
  Add(2);
  EXPECT_THAT(Pairs({1}), IsEmpty());
  Node(1)->mutable_exchanges()->set_after_failure(true);
  EXPECT_THAT(Pairs({1}), SizeIs(1));
  Add(1);
  EXPECT_THAT(Pairs({0, 1}), ElementsAre(Pair("n1", "n2")))
      << "a machine without memory comes first";
}

TEST_F(ExchangesTest, AgentsThatShareAMachineArePairedWithAgentsOfOthers) {
  Add(4);
  for (const int i : {0, 1}) Node(i)->mutable_hello()->set_machine_id("a");
  for (const int i : {2, 3}) Node(i)->mutable_hello()->set_machine_id("b");
  EXPECT_THAT(Pairs(), ElementsAre(Pair("n0", "n2"), Pair("n1", "n3")));
  state_.mutable_nodes()->DeleteSubrange(2, 2);
  EXPECT_THAT(Pairs(), ElementsAre(Pair("n0", "n1"))) << "all share one machine";
  for (const int i : {0, 1}) Node(i)->mutable_hello()->clear_machine_id();
  EXPECT_THAT(Pairs(), SizeIs(1)) << "nobody knows";
  EXPECT_FALSE(ShareOneMachine(state_));
}

TEST_F(ExchangesTest, AmongEqualsTheOneWithTheFewestResultsIsTheNextPartner) {
  Add(7);
  for (const auto& [a, b] : {std::pair(1, 2), std::pair(1, 3), std::pair(1, 4), std::pair(2, 3),
                             std::pair(2, 4), std::pair(3, 4), std::pair(5, 3), std::pair(5, 4)}) {
    Exchanged(a, b, kFast);
  }
  Exchanged(0, 6, 0, "broken");
  Exchanged(6, 1, kFast);
  EXPECT_THAT(Pairs(), ElementsAre(Pair("n0", "n5")));
}

TEST_F(ExchangesTest, NoMorePairsAreChosenThanMayBe) {
  Add(6);
  num_max_ = 2;
  EXPECT_THAT(Pairs(), SizeIs(2));
}

TEST_F(ExchangesTest, TheNewestResultWithEachMachineIsKeptAndSixteenAtMost) {
  v1::NodeExchanges kept;
  ExchangeResult result;
  for (int i = 0; i < kResultsKept + 2; ++i) {
    result.set_node_id(Id(i));
    KeepResult(result, &kept);
  }
  EXPECT_EQ(kept.results_size(), kResultsKept);
  EXPECT_EQ(kept.results(0).node_id(), "n2");
  result.set_node_id("n2");
  result.set_failure("broken");
  KeepResult(result, &kept);
  EXPECT_EQ(kept.results_size(), kResultsKept);
  EXPECT_EQ(kept.results(0).node_id(), "n3");
  EXPECT_EQ(kept.results(kResultsKept - 1).failure(), "broken");
}

// --- rates ------------------------------------------------------------------------------------

TEST_F(ExchangesTest, TheRateExpectedIsTheMedianOfTheBestOfEachMachineOnceThreeHaveOne) {
  state_.set_machine_tests(TEST_KIND_FULL);
  Add(3);
  Exchanged(0, 1, kSlow);
  EXPECT_EQ(MinimumExchangeRate(state_), 0);
  Exchanged(0, 2, kSlow);
  Exchanged(1, 2, kFast);
  EXPECT_EQ(MinimumExchangeRate(state_), kFast / 2);
  state_.set_machine_tests(TEST_KIND_QUICK);
  EXPECT_EQ(MinimumExchangeRate(state_), 0) << "quick tests are too short";
  state_.set_machine_tests(TEST_KIND_FULL);
  Node(2)->mutable_hello()->set_machine_id(Node(1)->hello().machine_id());
  EXPECT_EQ(MinimumExchangeRate(state_), 0) << "two agents share a machine";
  state_.set_exchange_rate(60e6);
  EXPECT_EQ(MinimumExchangeRate(state_), 30e6) << "what the driver was told to expect";
}

TEST_F(ExchangesTest, AnExchangeBelowTheMinimumFailsWithBothRates) {
  ExchangeResult result;
  result.set_bytes_per_second(kSlow);
  EXPECT_EQ(Judge(result), ExchangeVerdict::kPassed);
  result.set_rate_min(kSlow);
  EXPECT_EQ(Judge(result), ExchangeVerdict::kPassed);
  result.set_rate_min(kFast);
  EXPECT_EQ(Judge(result), ExchangeVerdict::kFailed);
  EXPECT_EQ(WhyFailed(result), "reached 9.5 MiB/s, expected at least 95.4 MiB/s");
  result.set_note("n1: not tested");
  EXPECT_EQ(Judge(result), ExchangeVerdict::kUnknown);
}

// --- blame ------------------------------------------------------------------------------------

TEST_F(ExchangesTest, APairAloneNamesNobody) {
  Add(2);
  Exchanged(0, 1, 0, "n0: n1 does not connect");
  EXPECT_THAT(FindFaulty(state_), IsEmpty());
}

TEST_F(ExchangesTest, WhoFailsTwiceIsNamedOnceOneOfTheOthersHasPassed) {
  Add(3);
  Exchanged(0, 1, 0, "n0: n1 does not connect");
  Exchanged(0, 2, 0, "n0: n2 does not connect");
  EXPECT_THAT(FindFaulty(state_), IsEmpty()) << "n1 and n2 may both be broken";
  Exchanged(1, 2, kFast);
  const std::vector<FaultyMachine> faulty = FindFaulty(state_);
  ASSERT_THAT(faulty, SizeIs(1));
  EXPECT_EQ(faulty[0].node_id, "n0");
  EXPECT_EQ(faulty[0].evidence,
            "exchanges failed with n1: n0: n1 does not connect; with n2: n0: n2 does not connect; "
            "n1 passed with n2");
}

TEST_F(ExchangesTest, ASlowMachineIsNamedAlthoughItWasMeasuredFirst) {
  state_.set_machine_tests(TEST_KIND_FULL);
  Add(3);
  Exchanged(0, 1, kSlow);
  Exchanged(0, 2, kSlow);
  Exchanged(1, 2, kFast);
  const std::vector<FaultyMachine> faulty = FindFaulty(state_);
  ASSERT_THAT(faulty, SizeIs(1));
  EXPECT_EQ(faulty[0].node_id, "n0");
  EXPECT_THAT(faulty[0].evidence, HasSubstr("with n1: reached 9.5 MiB/s, expected at least"));
}

// The machines that came first were measured on a network that was slower then.
TEST_F(ExchangesTest, AMinimumThatRisesLaterCondemnsNoOldResult) {
  state_.set_machine_tests(TEST_KIND_FULL);
  Add(7);
  Exchanged(0, 1, kSlow);
  Exchanged(0, 2, kSlow);
  Exchanged(1, 2, kSlow);
  for (const int other : {3, 4, 5, 6}) Exchanged(1, other, kFast);
  Exchanged(2, 3, kFast);
  ASSERT_EQ(MinimumExchangeRate(state_), kFast / 2);
  EXPECT_TRUE(HasPassed(*Node(0)));
  EXPECT_THAT(FindFaulty(state_), IsEmpty());
}

TEST_F(ExchangesTest, OneExchangeThatPassedClearsAMachine) {
  Add(4);
  Exchanged(0, 1, 0, "broken");
  Exchanged(0, 2, kFast);
  Exchanged(0, 3, 0, "broken");
  Exchanged(1, 2, kFast);
  EXPECT_THAT(FindFaulty(state_), IsEmpty());
}

// Whoever has one certificate may make nodes of any names, which fail with a healthy machine, pass
// with each other, and claim to be machines of their own.
TEST_F(ExchangesTest, NodesOfOneCertificateNameNobody) {
  state_.set_rules(10);
  Add(5);
  Node(0)->set_certificate("healthy");
  for (const int made_up : {1, 2, 3}) {
    Node(made_up)->set_certificate("thief");
    Node(made_up)->set_address("10.0.0." + std::to_string(made_up));
    Exchanged(0, made_up, 0, "n0 does not connect");
  }
  Exchanged(1, 2, kFast);
  EXPECT_THAT(FindFaulty(state_), IsEmpty());
  state_.set_rules(9);
  EXPECT_THAT(FindFaulty(state_), SizeIs(1)) << "an older log must lead to what it led to";
  state_.set_rules(10);
  Node(4)->set_certificate("another");
  Exchanged(0, 4, 0, "n0 does not connect");
  EXPECT_THAT(FindFaulty(state_), IsEmpty()) << "n1 passed with its own kind only";
  Exchanged(3, 4, kFast);
  EXPECT_THAT(FindFaulty(state_), SizeIs(1)) << "two parties, and one passed with the other";
}

TEST_F(ExchangesTest, MachinesThatShareACertificateCountByTheirAddresses) {
  state_.set_rules(10);
  Add(3);
  for (int i = 0; i < 3; ++i) {
    Node(i)->set_certificate("fleet");
    Node(i)->set_address("10.0.0.1");
  }
  Exchanged(0, 1, 0, "broken");
  Exchanged(0, 2, 0, "broken");
  Exchanged(1, 2, kFast);
  EXPECT_THAT(FindFaulty(state_), IsEmpty()) << "n1 and n2 may be one machine";
  Node(2)->set_address("10.0.0.2");
  EXPECT_THAT(FindFaulty(state_), SizeIs(1));
}

TEST_F(ExchangesTest, NodesOfOneMachineDoNotRaiseTheRateThatOthersMustReach) {
  state_.set_rules(10);
  state_.set_machine_tests(TEST_KIND_FULL);
  Add(6);
  for (int i = 0; i < 6; ++i) {
    Node(i)->set_certificate(i < 2 ? "honest-" + std::to_string(i) : "thief");
  }
  for (int other = 3; other < 6; ++other) Exchanged(2, other, 100 * kFast);
  Exchanged(3, 4, 100 * kFast);
  Exchanged(0, 1, kFast);
  Exchanged(0, 2, kFast);
  Exchanged(1, 2, kFast);
  EXPECT_EQ(MinimumExchangeRate(state_), kFast / 2);
}

// Whatever the faults are, if they stay: exchanges fail if and only if a member is broken.
TEST_F(ExchangesTest, NoMachineInOrderIsEverNamedAndOneThatIsBrokenAloneIs) {
  constexpr int kNum = 6;
  for (int broken = 0; broken < 1 << kNum; ++broken) {
    state_.Clear();
    Add(kNum);
    const auto is_broken = [&](int i) { return (broken >> i & 1) != 0; };
    std::map<std::string, int> index;
    for (int i = 0; i < kNum; ++i) index[Id(i)] = i;
    for (auto pairs = Pairs(); !pairs.empty(); pairs = Pairs()) {
      for (const auto& [a, b] : pairs) {
        const bool fails = is_broken(index[a]) || is_broken(index[b]);
        Exchanged(index[a], index[b], fails ? 0 : kFast, fails ? "broken" : "");
      }
      for (const FaultyMachine& faulty : FindFaulty(state_)) {
        EXPECT_TRUE(is_broken(index[faulty.node_id])) << "of " << broken;
      }
    }
    int num_broken = 0;
    for (int i = 0; i < kNum; ++i) num_broken += is_broken(i) ? 1 : 0;
    if (num_broken == 1) {
      EXPECT_THAT(FindFaulty(state_), SizeIs(1)) << "of " << broken;
    }
  }
}

TEST_F(ExchangesTest, TheWorstExchangeIsOneThatFailedOrElseTheSlowest) {
  Add(4);
  const auto worst = [&]() -> std::string {
    const ExchangeResult* result = WorstExchange(Node(0)->exchanges().results());
    return result == nullptr ? "" : result->node_id();
  };
  EXPECT_EQ(worst(), "");
  Exchanged(0, 1, kFast);
  Exchanged(0, 2, kSlow);
  EXPECT_EQ(worst(), "n2");
  Exchanged(0, 3, 0);
  Node(0)->mutable_exchanges()->mutable_results(2)->set_note("not tested: no memory");
  EXPECT_EQ(worst(), "n2") << "an exchange that says nothing is not the worst";
  Exchanged(0, 1, kFast, "1 byte differs");
  EXPECT_EQ(worst(), "n1");
}

// --- what agents do and tell --------------------------------------------------------------------

v1::Exchange RunningExchange() {
  v1::Exchange exchange;
  exchange.set_id(7);
  exchange.set_kind(TEST_KIND_QUICK);
  for (const char* node_id : {"n0", "n1"}) exchange.add_members()->set_node_id(node_id);
  return exchange;
}

TEST_F(ExchangesTest, BothMembersAreAskedForTheSameExchangeWithASecretOfTheLog) {
  state_.set_secret("secret");
  const auto first = RequestOf(state_, RunningExchange(), "n0");
  const auto second = RequestOf(state_, RunningExchange(), "n1");
  EXPECT_EQ(first.id(), 7);
  EXPECT_EQ(first.exchange().member(), 0);
  EXPECT_EQ(second.exchange().member(), 1);
  EXPECT_THAT(second.exchange().node_ids(), ElementsAre("n0", "n1"));
  EXPECT_EQ(first.exchange().secret(), second.exchange().secret());
  EXPECT_EQ(first.exchange().group(), second.exchange().group());
  EXPECT_GT(first.exchange().volume_bytes(), 0);
  v1::Exchange next = RunningExchange();
  next.set_id(8);
  EXPECT_NE(RequestOf(state_, next, "n0").exchange().secret(), first.exchange().secret());
}

TEST_F(ExchangesTest, MembersBindTheirProofsToAddressesIfBothCan) {
  v1::DriverState state;
  for (const char* node_id : {"n0", "n1", "older"}) {
    megascale::agent::v1::Hello* hello = state.add_nodes()->mutable_hello();
    hello->set_node_id(node_id);
    hello->set_binds_address(hello->node_id() != "older");
  }
  v1::Exchange exchange = RunningExchange();
  EXPECT_TRUE(RequestOf(state, exchange, "n0").exchange().binds_address());
  exchange.mutable_members(1)->set_node_id("older");
  EXPECT_FALSE(RequestOf(state, exchange, "n0").exchange().binds_address());
}

TEST_F(ExchangesTest, TheResultHasTheLowerRateAndTheFailuresOfBoth) {
  v1::Exchange exchange = RunningExchange();
  for (int i = 0; i < 2; ++i) {
    MachineTest* test = exchange.mutable_members(i)->mutable_test();
    test->set_state(MachineTest::STATE_PASSED);
    test->add_results()->set_bytes_per_second(i == 0 ? kFast : kSlow);
    test->mutable_results(0)->set_latency_seconds(i == 0 ? 1e-4 : 0);
  }
  ExchangeResult result = ResultFor(exchange, 0);
  EXPECT_EQ(result.node_id(), "n1");
  EXPECT_EQ(result.bytes_per_second(), kSlow);
  EXPECT_EQ(result.latency_seconds(), 1e-4);
  EXPECT_EQ(result.failure(), "");
  exchange.mutable_members(1)->mutable_test()->set_state(MachineTest::STATE_FAILED);
  exchange.mutable_members(1)->mutable_test()->mutable_results(0)->set_failure("1 byte differs");
  for (const int member : {0, 1}) {
    EXPECT_EQ(ResultFor(exchange, member).failure(), "n1: 1 byte differs");
  }
}

TEST_F(ExchangesTest, WhatOneCouldNotCarryOutExplainsTheFailureOfTheOther) {
  v1::Exchange exchange = RunningExchange();
  MachineTest* waited = exchange.mutable_members(0)->mutable_test();
  waited->set_state(MachineTest::STATE_FAILED);
  waited->add_results()->set_failure("n1 does not connect");
  MachineTest* absent = exchange.mutable_members(1)->mutable_test();
  absent->set_state(MachineTest::STATE_PASSED);
  absent->add_results()->set_note("not tested: no memory");
  for (const int member : {0, 1}) {
    const ExchangeResult result = ResultFor(exchange, member);
    EXPECT_EQ(result.note(), "n1: not tested: no memory");
    EXPECT_EQ(Judge(result), ExchangeVerdict::kUnknown);
  }
}

TEST_F(ExchangesTest, AnAgentThatGaveNoResultFailedAndTheOtherKnowsNothing) {
  v1::Exchange exchange = RunningExchange();
  MachineTest* waited = exchange.mutable_members(0)->mutable_test();
  waited->set_state(MachineTest::STATE_FAILED);
  waited->add_results()->set_failure("n1 does not connect");
  MachineTest* silent = exchange.mutable_members(1)->mutable_test();
  silent->set_state(MachineTest::STATE_FAILED);
  silent->set_evidence("its agent gave no result within 1m30s");
  EXPECT_EQ(ResultFor(exchange, 1).failure(),
            "n0: n1 does not connect; n1: its agent gave no result within 1m30s");
  EXPECT_EQ(ResultFor(exchange, 0).failure(), "");
  EXPECT_EQ(ResultFor(exchange, 0).note(), "n1: its agent gave no result within 1m30s");
}

}  // namespace
}  // namespace megascale::driver
