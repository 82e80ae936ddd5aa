// Tests of what is judged without spans: exchange_state.h and number_check.h.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "runtime/diagnose/exchange_state.h"
#include "runtime/diagnose/number_check.h"

namespace megascale::diagnose {
namespace {

// A reduce-scatter of ranks 0 … n-1, of which each sends 100 bytes to each other one.
std::vector<ShownCall> Collective(int n) {
  std::vector<ShownCall> calls;
  for (int rank = 0; rank < n; ++rank) {
    ShownCall call = {.rank = rank, .node = "", .is_known = true, .is_inside = true, .flows = {}};
    for (int peer = 0; peer < n; ++peer) {
      if (peer != rank) call.flows.push_back({peer, 100, 100, 100, 100, 100, 1});
    }
    calls.push_back(call);
  }
  return calls;
}

ShownFlow& Flow(std::vector<ShownCall>& calls, int rank, int peer) {
  for (ShownFlow& flow : calls[static_cast<size_t>(rank)].flows) {
    if (flow.peer == peer) return flow;
  }
  ADD_FAILURE();
  return calls[0].flows[0];
}

TEST(ExchangeStateTest, ACallThatHasMovedEverythingBlamesNobody) {
  const std::vector<ShownCall> calls = Collective(4);
  const ExchangeVerdict verdict = ExplainExchange(calls);
  EXPECT_EQ(verdict.state, FlowState::kDone);
  EXPECT_EQ(verdict.rank, -1);
  EXPECT_TRUE(verdict.stuck.empty());
}

TEST(ExchangeStateTest, BytesThatDoNotArriveAreTheWayBetweenTwoRanks) {
  std::vector<ShownCall> calls = Collective(4);
  Flow(calls, 1, 2).delivered_bytes = 40;
  Flow(calls, 2, 1).received_bytes = 40;
  const ExchangeVerdict verdict = ExplainExchange(calls);
  EXPECT_EQ(verdict.state, FlowState::kNotDelivered);
  EXPECT_EQ(verdict.from, 1);
  EXPECT_EQ(verdict.to, 2);
  EXPECT_EQ(verdict.rank, -1);
}

TEST(ExchangeStateTest, ARankWhoseFlowsAllStandIsTheCause) {
  std::vector<ShownCall> calls = Collective(4);
  for (const int peer : {0, 1, 3}) {  // its network adapter is down
    Flow(calls, 2, peer).transmitted_bytes = 30;
    Flow(calls, 2, peer).delivered_bytes = 30;
    Flow(calls, 2, peer).received_bytes = 10;
    Flow(calls, peer, 2).received_bytes = 30;
    Flow(calls, peer, 2).delivered_bytes = 10;
  }
  const ExchangeVerdict verdict = ExplainExchange(calls);
  EXPECT_EQ(verdict.rank, 2);
  EXPECT_EQ(verdict.stuck.size(), 6u);
}

TEST(ExchangeStateTest, EachStateHasItsRule) {
  const auto state_of = [](int64_t ready, int64_t transmitted, int64_t received) {
    std::vector<ShownCall> calls = Collective(2);
    Flow(calls, 0, 1) = {1, ready, transmitted, received, 100, 100, 1};
    Flow(calls, 1, 0) = {0, 100, 100, 100, 100, received, 1};
    return ExplainExchange(calls).state;
  };
  EXPECT_EQ(state_of(100, 0, 0), FlowState::kNotStarted);
  EXPECT_EQ(state_of(100, 60, 60), FlowState::kNotTransmitted);
  EXPECT_EQ(state_of(100, 100, 60), FlowState::kNotDelivered);
  EXPECT_EQ(state_of(60, 60, 60), FlowState::kNotReady);
  EXPECT_EQ(state_of(100, 100, 100), FlowState::kDone);
}

TEST(ExchangeStateTest, ClaimsAboutAnotherRankDoNotNameIt) {
  std::vector<ShownCall> calls = Collective(4);
  // Ranks 0 and 1 say that rank 3 takes nothing. Rank 3 has everything, or has left.
  for (const int rank : {0, 1}) Flow(calls, rank, 3).delivered_bytes = 0;
  EXPECT_EQ(ExplainExchange(calls).rank, -1);
  EXPECT_EQ(ExplainExchange(calls).state, FlowState::kDone) << "the receiver knows better";
  calls[3].is_inside = false;
  calls[3].flows.clear();
  EXPECT_EQ(ExplainExchange(calls).rank, -1);
}

TEST(ExchangeStateTest, NonsenseNamesNoRankThatReportsCorrectly) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 2000; ++round) {
    std::vector<ShownCall> calls = Collective(5);
    calls[4].flows.clear();  // rank 4 lies
    for (int i = 0; i < 6; ++i) {
      const auto any = [&] { return static_cast<int64_t>(random() % 300); };
      calls[4].flows.push_back(
          {static_cast<int>(random() % 9) - 2, any(), any(), any(), any(), any(), 1});
    }
    const ExchangeVerdict verdict = ExplainExchange(calls);
    EXPECT_TRUE(verdict.rank == -1 || verdict.rank == 4) << verdict.rank;
    for (const StuckFlow& flow : verdict.stuck) EXPECT_TRUE(flow.from == 4 || flow.to == 4);
  }
}

std::vector<LoggedStep> Steps(int count) {
  std::vector<LoggedStep> steps;
  for (int i = 1; i <= count; ++i) {
    steps.push_back({i, 2.0 + 0.01 * (i % 7), 0.5 + 0.1 * (i % 5), 1000, 1.0, 1});
  }
  return steps;
}

TEST(NumberCheckTest, ACalmRunHasNoFinding) {
  EXPECT_TRUE(CheckNumbers({}).empty());
  EXPECT_TRUE(CheckNumbers(Steps(1)).empty());
  EXPECT_TRUE(CheckNumbers(Steps(400)).empty());
}

TEST(NumberCheckTest, AJumpByAFactorOfFiveIsFound) {
  std::vector<LoggedStep> steps = Steps(100);
  steps[90].loss = 10.5;
  steps[95].grad_norm = 3.9;
  steps[96].grad_norm = 3.0;  // less than five times the median
  const std::vector<NumberFinding> findings = CheckNumbers(steps);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].kind, OffRoad::kLossJump);
  EXPECT_EQ(findings[0].step, 91);
  EXPECT_NEAR(findings[0].usual, 2.03, 0.01);
  EXPECT_EQ(findings[1].kind, OffRoad::kGradientJump);
  EXPECT_EQ(findings[1].step, 96);
}

TEST(NumberCheckTest, AnOldJumpAndAnEarlyOneAreNoFinding) {
  std::vector<LoggedStep> steps = Steps(100);
  steps[3].loss = 50;
  steps[20].loss = 50;
  EXPECT_TRUE(CheckNumbers(steps).empty());
  EXPECT_TRUE(CheckNumbers(absl::MakeSpan(steps).first(6)).empty());
}

TEST(NumberCheckTest, ANumberThatIsNotFiniteIsFound) {
  std::vector<LoggedStep> steps = Steps(10);
  steps[9].grad_norm = NAN;
  const std::vector<NumberFinding> findings = CheckNumbers(steps);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, OffRoad::kNotFinite);
  EXPECT_EQ(findings[0].step, 10);
}

TEST(NumberCheckTest, ADeclineThatLastsIsFound) {
  std::vector<LoggedStep> steps = Steps(300);
  for (size_t i = 240; i < 300; ++i) steps[i].seconds = 1.3;
  ASSERT_EQ(CheckNumbers(steps).size(), 1u);
  EXPECT_EQ(CheckNumbers(steps)[0].kind, OffRoad::kSlower);
  EXPECT_NEAR(CheckNumbers(steps)[0].value / CheckNumbers(steps)[0].usual, 1 / 1.3, 0.01);
  for (size_t i = 270; i < 300; ++i) steps[i].seconds = 1.0;  // it is over
  EXPECT_TRUE(CheckNumbers(steps).empty());
}

TEST(NumberCheckTest, AnotherAttemptMayBeSlower) {
  std::vector<LoggedStep> steps = Steps(300);
  for (size_t i = 200; i < 300; ++i) steps[i] = {201 + static_cast<int>(i), 2, 0.5, 1000, 2.0, 2};
  EXPECT_TRUE(CheckNumbers(steps).empty());
}

}  // namespace
}  // namespace megascale::diagnose
