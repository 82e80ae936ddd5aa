#include "controlplane/driver/exchanges/rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "controlplane/driver/exchanges/exchanges.h"
#include "controlplane/driver/exchanges/testing/test_machine.h"

namespace megascale::driver {
namespace {

using megascale::agent::v1::MachineTest;
using megascale::agent::v1::TEST_KIND_FULL;
using megascale::control::v1::ExchangeResult;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RoundsTest : public ::testing::Test {
 protected:
  // Adds machines that want a round: n100, n101 ….
  void Add(int count) {
    for (int i = 0; i < count; ++i)
      AddMachine("n" + std::to_string(100 + state_.nodes_size()), &state_);
  }
  v1::NodeExchanges* Exchanges(int index) {
    return state_.mutable_nodes(index)->mutable_exchanges();
  }
  std::vector<std::vector<std::string>> Choose(int num_max = kExchangesAtOnce) {
    std::vector<const v1::NodeRecord*> machines;
    for (const v1::NodeRecord& node : state_.nodes()) machines.push_back(&node);
    return ChooseRounds(machines, share_one_machine_, num_max);
  }

  v1::DriverState state_;
  bool share_one_machine_ = false;
};

TEST_F(RoundsTest, AFewMachinesExchangeAllToAll) {
  Add(2);
  EXPECT_THAT(Choose(), IsEmpty()) << "two are a pair";
  Add(1);
  EXPECT_THAT(Choose(), ElementsAre(ElementsAre("n100", "n101", "n102")));
  Add(5);
  EXPECT_THAT(Choose(), ElementsAre(SizeIs(kRoundMax)));
}

TEST_F(RoundsTest, ManyMachinesTakePartOnceEachWithFewOthers) {
  for (const int count : {9, 8, 91, 400}) {  // more each time
    Add(count);
    std::map<std::string, int> parts;
    size_t num_messages = 0;
    const std::vector<std::vector<std::string>> rounds = Choose();
    for (const std::vector<std::string>& round : rounds) {
      EXPECT_GE(round.size(), static_cast<size_t>(kRoundMin));
      EXPECT_LE(round.size(), static_cast<size_t>(kRoundMax));
      for (const std::string& node_id : round) ++parts[node_id];
      num_messages += round.size() * round.size();
    }
    EXPECT_EQ(parts.size(), static_cast<size_t>(state_.nodes_size()));
    for (const auto& [node_id, num_parts] : parts) EXPECT_EQ(num_parts, 1) << node_id;
    EXPECT_LE(num_messages, parts.size() * kRoundMax);
    EXPECT_LE(rounds.size(), static_cast<size_t>(kExchangesAtOnce));
  }
}

TEST_F(RoundsTest, TheMembersOfARoundAreFarApart) {
  Add(16);
  EXPECT_THAT(Choose()[0],
              ElementsAre("n100", "n102", "n104", "n106", "n108", "n110", "n112", "n114"));
}

TEST_F(RoundsTest, NoMoreRoundsBeginThanMayRunAtOnce) {
  Add(40);
  EXPECT_THAT(Choose(2), SizeIs(2));
  EXPECT_THAT(Choose(0), IsEmpty());
}

TEST_F(RoundsTest, MachinesThatHaveHadTheirRoundBeginNoOther) {
  Add(4);
  for (int i = 0; i < 3; ++i) Exchanges(i)->mutable_round()->set_failure("slow");
  EXPECT_THAT(Choose(), ElementsAre(SizeIs(4))) << "the last one has had none";
  Exchanges(3)->mutable_round()->set_note("not tested: no memory");
  EXPECT_THAT(Choose(), IsEmpty());
}

TEST_F(RoundsTest, AMachineThatExchangesOrFailedWithAllOthersTakesNoPart) {
  Add(5);
  Exchanges(0)->set_with("n104");
  Exchanges(1)->add_results()->set_failure("n100 does not connect");
  EXPECT_THAT(Choose(), ElementsAre(ElementsAre("n102", "n103", "n104")));
  Exchanges(1)->add_results()->set_bytes_per_second(1e9);
  EXPECT_THAT(Choose(), ElementsAre(ElementsAre("n101", "n102", "n103", "n104")));
}

TEST_F(RoundsTest, ARoundHasOneAgentOfEachMachineUnlessAllShareOne) {
  Add(4);
  for (const int i : {0, 1}) state_.mutable_nodes(i)->mutable_hello()->set_machine_id("one");
  EXPECT_THAT(Choose(), ElementsAre(ElementsAre("n100", "n102", "n103")));
  share_one_machine_ = true;
  EXPECT_THAT(Choose(), ElementsAre(SizeIs(4)));
}

// --- what agents do and tell --------------------------------------------------------------------

// A round of n0, n1 and n2 that all have passed, with 10, 20 and 30 bytes per second.
v1::Exchange EndedRound() {
  v1::Exchange round;
  round.set_kind(TEST_KIND_FULL);
  for (int i = 0; i < 3; ++i) {
    v1::ExchangeMember* member = round.add_members();
    member->set_node_id("n" + std::to_string(i));
    member->mutable_test()->set_state(MachineTest::STATE_PASSED);
    member->mutable_test()->add_results()->set_bytes_per_second(10 * (i + 1));
  }
  round.mutable_members(0)->mutable_test()->mutable_results(0)->set_latency_seconds(0.25);
  return round;
}

void Fail(v1::ExchangeMember* member, const std::string& failure) {
  member->mutable_test()->set_state(MachineTest::STATE_FAILED);
  member->mutable_test()->mutable_results(0)->set_failure(failure);
}

TEST_F(RoundsTest, AMachineSendsAsMuchToAllOthersAsToTheOtherOneOfAPair) {
  v1::Exchange round = EndedRound();
  EXPECT_TRUE(IsRound(round));
  EXPECT_EQ(RequestOf(state_, round, "n2").exchange().volume_bytes(),
            SizeOf(TEST_KIND_FULL).volume_bytes / 2);
  EXPECT_THAT(RequestOf(state_, round, "n2").exchange().node_ids(), ElementsAre("n0", "n1", "n2"));
  round.mutable_members()->RemoveLast();
  EXPECT_FALSE(IsRound(round));
}

TEST_F(RoundsTest, EachMemberHasARateAndAFailureOfItsOwn) {
  v1::Exchange round = EndedRound();
  Fail(round.mutable_members(1), "block 1 from n0: 1 byte read back wrong");
  const ExchangeResult first = RoundResultFor(round, 0);
  EXPECT_EQ(first.node_id(), "");
  EXPECT_THAT(first.node_ids(), ElementsAre("n1", "n2"));
  EXPECT_EQ(first.bytes_per_second(), 10);
  EXPECT_EQ(first.latency_seconds(), 0.25);
  EXPECT_EQ(Judge(first), ExchangeVerdict::kPassed);
  EXPECT_EQ(RoundResultFor(round, 1).failure(), "block 1 from n0: 1 byte read back wrong");
  EXPECT_EQ(RoundResultFor(round, 2).bytes_per_second(), 30);
  EXPECT_EQ(Judge(RoundResultFor(round, 2)), ExchangeVerdict::kPassed);
}

TEST_F(RoundsTest, WhatOneCouldNotCarryOutExplainsTheFailuresOfOthers) {
  v1::Exchange round = EndedRound();
  Fail(round.mutable_members(1), "n2 does not connect");
  MachineTest* absent = round.mutable_members(2)->mutable_test();
  absent->mutable_results(0)->set_note("not tested: no memory");
  EXPECT_EQ(RoundResultFor(round, 0).note(), "") << "it did not fail";
  EXPECT_EQ(RoundResultFor(round, 1).note(), "n2: not tested: no memory");
  EXPECT_EQ(RoundResultFor(round, 1).failure(), "");
  EXPECT_EQ(RoundResultFor(round, 2).note(), "n2: not tested: no memory");
}

TEST_F(RoundsTest, AnAgentThatGaveNoResultFailedAndTheOthersKnowNothing) {
  v1::Exchange round = EndedRound();
  Fail(round.mutable_members(0), "n2 does not connect");
  MachineTest* silent = round.mutable_members(2)->mutable_test();
  silent->Clear();
  silent->set_state(MachineTest::STATE_FAILED);
  silent->set_evidence("its agent gave no result within 1m30s");
  EXPECT_EQ(RoundResultFor(round, 0).note(), "n2: its agent gave no result within 1m30s");
  EXPECT_EQ(RoundResultFor(round, 2).failure(), "its agent gave no result within 1m30s");
}

}  // namespace
}  // namespace megascale::driver
