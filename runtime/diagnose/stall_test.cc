// The walk over positions that were injected: a rank stops at an instruction, the others go on
// until they block, and the verdict must name the rank. Then what is judged without spans:
// exchange_state.h and number_check.h.
#include "runtime/diagnose/stall.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/diagnose/exchange_state.h"
#include "runtime/diagnose/measured_job.h"
#include "runtime/diagnose/number_check.h"
#include "runtime/plan/build/evaluation_plan.h"
#include "runtime/plan/build/roles.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/plan/operation.h"
#include "runtime/timeline/measured_step.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::diagnose {
namespace {

using plan::RankPlan;

// How a rank stops.
enum class Stop {
  kStream,          // one stream never begins the instruction; its other streams go on
  kRank,            // as the instruction could begin, the whole rank stops; peers wait for its part
  kRankAfterSends,  // the same, but exchanges that it is in end for the others
};

constexpr int64_t kFirstStep = 7;

struct Place {
  size_t rank = 0;
  size_t index = 0;
};

// Runs steps of all ranks in a random order until nothing can go on. A rank stops in the first one.
class StoppedStep {
 public:
  StoppedStep(const std::vector<RankPlan>& plans, Stop stop, Place at, uint32_t seed)
      : plans_(plans), stop_(stop), at_(at), random_(seed) {
    for (const RankPlan& plan : plans) {
      positions_.push_back({.known = true, .step = kFirstStep});
      positions_.back().states.assign(plan.instructions.size(), InstructionState::kNotBegun);
      for (size_t i = 0; i < plan.instructions.size(); ++i) {
        if (plan.instructions[i].group == plan::GroupKind::kNone) continue;
        meetings_[timeline::MeetingOf(plan, plan.instructions[i])].push_back(
            {static_cast<size_t>(plan.rank), i});
      }
    }
  }

  std::vector<RankPosition> Go() {
    for (;;) {
      std::vector<Place> ready;
      for (size_t rank = 0; rank < plans_.size(); ++rank) AddReady(rank, &ready);
      if (ready.empty()) return positions_;
      Begin(ready[random_() % ready.size()]);
    }
  }

 private:
  InstructionState& At(Place place) { return positions_[place.rank].states[place.index]; }

  void AddReady(size_t rank, std::vector<Place>* ready) {
    const auto& instructions = plans_[rank].instructions;
    std::map<plan::StreamKind, bool> is_blocked;
    for (size_t i = 0; i < instructions.size(); ++i) {
      const Place place = {rank, i};
      if (At(place) == InstructionState::kEnded) continue;
      bool& blocked = is_blocked[instructions[i].stream];
      bool can_begin = At(place) == InstructionState::kNotBegun && !blocked;
      blocked = true;
      for (const int earlier : instructions[i].depends_on) {
        can_begin =
            can_begin && At({rank, static_cast<size_t>(earlier)}) == InstructionState::kEnded;
      }
      if (!can_begin) continue;
      if (rank == at_.rank && i == at_.index && positions_[rank].step == kFirstStep) {
        is_stopped_ = true;
        if (stop_ != Stop::kStream)
          ready->erase(ready->begin() + FirstOf(rank, *ready), ready->end());
      }
      const bool stays =
          rank == at_.rank && is_stopped_ && (stop_ != Stop::kStream || i == at_.index);
      if (!stays) ready->push_back(place);
    }
  }
  static int64_t FirstOf(size_t rank, const std::vector<Place>& ready) {
    int64_t first = 0;
    while (first < static_cast<int64_t>(ready.size()) &&
           ready[static_cast<size_t>(first)].rank != rank) {
      ++first;
    }
    return first;
  }

  void End(Place place) {
    At(place) = InstructionState::kEnded;
    RankPosition& position = positions_[place.rank];
    for (const InstructionState state : position.states) {
      if (state != InstructionState::kEnded) return;
    }
    ++position.step;
    position.states.assign(position.states.size(), InstructionState::kNotBegun);
  }

  void Begin(Place place) {
    const plan::Instruction& instruction = plans_[place.rank].instructions[place.index];
    if (instruction.group == plan::GroupKind::kNone) return End(place);
    At(place) = InstructionState::kRuns;
    const std::vector<Place>& members =
        meetings_[timeline::MeetingOf(plans_[place.rank], instruction)];
    bool holds_stopped = false;
    for (const Place member : members) {
      if (positions_[member.rank].step != positions_[place.rank].step) return;
      if (At(member) == InstructionState::kNotBegun) return;
      holds_stopped |= member.rank == at_.rank && is_stopped_ && stop_ != Stop::kStream;
    }
    if (holds_stopped && stop_ == Stop::kRank) {
      // The others come to the first exchange within a pass.
      const bool is_pass = plan::IsPass(instruction.kind());
      for (const Place member : members) {
        if (is_pass && member.rank != at_.rank) positions_[member.rank].piece = 1;
      }
      return;
    }
    for (const Place member : members) {
      if (!holds_stopped || member.rank != at_.rank) End(member);
    }
  }

  const std::vector<RankPlan>& plans_;
  const Stop stop_;
  const Place at_;
  std::mt19937 random_;
  std::vector<RankPosition> positions_;
  std::map<timeline::MeetingName, std::vector<Place>> meetings_;
  bool is_stopped_ = false;
};

struct Layout {
  std::string name;
  plan::PlanOptions options;
};

std::vector<RankPlan> PlansOf(const plan::PlanOptions& options) {
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < options.mesh.world_size(); ++rank) {
    plans.push_back(plan::BuildTrainPlan(options, rank).value());
  }
  return plans;
}

plan::PlanOptions Of(plan::MeshSizes sizes, int num_microbatches) {
  plan::PlanOptions options;
  options.mesh = plan::Mesh::Create(sizes).value();
  options.num_microbatches = num_microbatches;
  return options;
}

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts;
  layouts.push_back({"data 2", Of({.data = 2}, 2)});
  layouts.push_back({"pipeline 4", Of({.pipeline = 4}, 4)});
  layouts.push_back({"data 2 x pipeline 2", Of({.data = 2, .pipeline = 2}, 3)});
  layouts.push_back({"tensor 2 x pipeline 2", Of({.pipeline = 2, .tensor = 2}, 2)});
  layouts.push_back(
      {"data 2 x pipeline 2 x tensor 2", Of({.data = 2, .pipeline = 2, .tensor = 2}, 2)});
  Layout interleaved = {"interleaved", Of({.data = 2, .pipeline = 2}, 4)};
  interleaved.options.schedule = plan::Schedule::kInterleaved1F1B;
  interleaved.options.chunks_per_stage = 2;
  layouts.push_back(interleaved);
  Layout split = {"split backward", Of({.data = 2, .pipeline = 3}, 3)};
  split.options.schedule = plan::Schedule::kZeroBubbleH1;
  layouts.push_back(split);
  Layout sharded = {"ZeRO 2 with buckets and trust ratios", Of({.data = 3, .pipeline = 2}, 2)};
  sharded.options.zero_stage = 2;
  sharded.options.num_buckets = {2, 2};
  sharded.options.has_trust_ratios = true;
  layouts.push_back(sharded);
  return layouts;
}

class StallTest : public ::testing::TestWithParam<Stop> {};

// Every rank at every instruction of its step.
TEST_P(StallTest, NamesTheRankThatStoppedAtAnyInstruction) {
  for (const Layout& layout : Layouts()) {
    const std::vector<RankPlan> plans = PlansOf(layout.options);
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      for (size_t index = 0; index < plans[rank].instructions.size(); ++index) {
        const auto seed = static_cast<uint32_t>(1000 * rank + index);
        const std::vector<RankPosition> positions =
            StoppedStep(plans, GetParam(), {rank, index}, seed).Go();
        const StallVerdict verdict = ExplainStall(plans, positions);
        const std::string where = absl::StrCat(layout.name, ", rank ", rank, " stopped at ",
                                               plans[rank].instructions[index].id.ToString());
        ASSERT_EQ(verdict.root.rank, static_cast<int>(rank)) << where;
        ASSERT_TRUE(verdict.root.cause == StallCause::kNotBegun ||
                    (verdict.root.cause == StallCause::kRuns &&
                     plan::IsPass(verdict.root.instruction.operation())))
            << where;
        ASSERT_EQ(verdict.root.step, kFirstStep) << where;
        ASSERT_TRUE(verdict.other_roots.empty()) << where;
        if (GetParam() == Stop::kStream) {
          ASSERT_EQ(verdict.root.instruction, plans[rank].instructions[index].id) << where;
        }
        for (const WaitingRank& waiting : verdict.waiting) {
          ASSERT_NE(waiting.rank, verdict.root.rank) << where;
          ASSERT_FALSE(waiting.waits_for.empty()) << where;
        }
        // Others end their step without it only after the last exchange with it.
        ASSERT_EQ(verdict.root.num_waiting, static_cast<int>(verdict.waiting.size())) << where;
      }
    }
  }
}

// Returns the spans of a rank that has ended step kFirstStep and two batches of its evaluation, and
// stands in the third one, or in the next, as `position` says.
timeline::RankSpans SpansInEvaluation(const RankPlan& of_step, const RankPlan& of_batch,
                                      const RankPosition& position) {
  timeline::RankSpans spans = {.known = true, .spans = {}, .seen_nanos = 1000};
  const auto add = [&](plan::InstructionId id, InstructionState state) {
    if (state == InstructionState::kNotBegun) return;
    const int64_t end = state == InstructionState::kEnded ? 2 : 0;
    spans.spans.push_back(
        {.begin_nanos = 1, .end_nanos = end, .instruction = id.packed(), .step = kFirstStep});
  };
  for (const auto& instruction : of_step.instructions) {
    add(instruction.id, InstructionState::kEnded);
  }
  for (int64_t batch = kFirstStep - 2; batch < position.step; ++batch) {
    for (const auto& instruction : of_batch.instructions) {
      add(instruction.id, InstructionState::kEnded);
    }
  }
  for (size_t i = 0; i < of_batch.instructions.size(); ++i) {
    const plan::InstructionId id = of_batch.instructions[i].id;
    add(id, position.states[i]);
    const bool meets = position.piece > 0 && plan::IsPass(id.operation());
    if (meets && position.states[i] == InstructionState::kRuns) {
      add(id.WithPiece(position.piece), InstructionState::kRuns);
    }
  }
  return spans;
}

// Every rank at every instruction of a batch: its step has ended, and batches before this one, too.
TEST_P(StallTest, NamesTheRankThatStoppedInAnEvaluation) {
  for (const Layout& layout : Layouts()) {
    const std::vector<RankPlan> plans = PlansOf(layout.options);
    std::vector<RankPlan> batch;
    for (const RankPlan& plan : plans) {
      batch.push_back(plan::BuildEvaluationPlan(layout.options, plan.rank).value());
    }
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      for (size_t index = 0; index < batch[rank].instructions.size(); ++index) {
        const auto seed = static_cast<uint32_t>(1000 * rank + index);
        const std::vector<RankPosition> stopped =
            StoppedStep(batch, GetParam(), {rank, index}, seed).Go();
        std::vector<timeline::RankSpans> spans;
        for (size_t i = 0; i < plans.size(); ++i) {
          spans.push_back(SpansInEvaluation(plans[i], batch[i], stopped[i]));
        }
        const auto plan_of = [&](int i) { return &batch[static_cast<size_t>(i)]; };
        const std::vector<RankPosition> positions = PositionsOf(plans, spans, plan_of);
        const StallVerdict verdict = ExplainStall(plans, positions);
        const plan::InstructionId at = batch[rank].instructions[index].id;
        const std::string where =
            absl::StrCat(layout.name, ", rank ", rank, " stopped at ", at.ToString());
        ASSERT_EQ(verdict.root.rank, static_cast<int>(rank)) << where;
        ASSERT_EQ(verdict.root.step, kFirstStep) << where;
        ASSERT_TRUE(verdict.other_roots.empty()) << where;
        ASSERT_TRUE(plan::OperationOf(verdict.root.instruction.operation()).for_evaluation)
            << where;
        if (GetParam() != Stop::kStream) continue;
        ASSERT_EQ(verdict.root.instruction, at) << where;
        ASSERT_EQ(StandsAt(plans, positions, static_cast<int>(rank)).has_value(), true);
      }
    }
  }
}

TEST(StallVerdictTest, SaysWhetherAnInstructionIsOfAStepOrOfTheEvaluationAfterIt) {
  EXPECT_EQ(StepText(plan::InstructionId(plan::OpKind::kForward, 0, 1), 9), "step 9");
  EXPECT_EQ(StepText(plan::InstructionId(plan::OpKind::kEvaluate, 0, 1), 9),
            "the evaluation after step 9");
}

INSTANTIATE_TEST_SUITE_P(Stops, StallTest,
                         ::testing::Values(Stop::kStream, Stop::kRank, Stop::kRankAfterSends));

std::vector<RankPosition> AllAt(const std::vector<RankPlan>& plans, InstructionState state) {
  std::vector<RankPosition> positions;
  for (const RankPlan& plan : plans) {
    positions.push_back({.known = true, .step = 3});
    positions.back().states.assign(plan.instructions.size(), state);
  }
  return positions;
}

TEST(StallVerdictTest, NamesARankOfWhichNothingIsKnownIfOthersWaitForIt) {
  const std::vector<RankPlan> plans = PlansOf(Of({.data = 2, .pipeline = 2}, 3));
  std::vector<RankPosition> positions = StoppedStep(plans, Stop::kRank, {2, 0}, 1).Go();
  positions[2] = {};
  const StallVerdict verdict = ExplainStall(plans, positions);
  EXPECT_EQ(verdict.root.cause, StallCause::kNoTrace);
  EXPECT_EQ(verdict.root.rank, 2);
}

TEST(StallVerdictTest, NamesARankThatDoesNotBeginTheStepInWhichOthersWait) {
  const std::vector<RankPlan> plans = PlansOf(Of({.data = 2}, 1));
  std::vector<RankPosition> positions = AllAt(plans, InstructionState::kEnded);
  positions[1] = StoppedStep(plans, Stop::kRank, {0, 0}, 1).Go()[1];
  positions[1].step = 4;
  const StallVerdict verdict = ExplainStall(plans, positions);
  EXPECT_EQ(verdict.root.rank, 0);
  EXPECT_EQ(verdict.root.step, 4);
  EXPECT_EQ(verdict.root.cause, StallCause::kNotBegun);
}

// In a snapshot of a job that has just stopped, another rank may still compute.
TEST(StallVerdictTest, OfSeveralRanksThatMayBeTheCauseTheSilentOneIsNamedOrNone) {
  const std::vector<RankPlan> plans = PlansOf(Of({.pipeline = 3}, 4));
  std::vector<RankPosition> positions = AllAt(plans, InstructionState::kNotBegun);
  StallVerdict verdict = ExplainStall(plans, positions);
  EXPECT_EQ(verdict.root.cause, StallCause::kUnknown);
  EXPECT_EQ(verdict.root.rank, -1);
  EXPECT_FALSE(verdict.other_roots.empty());
  positions[2].silent_seconds = 5;
  verdict = ExplainStall(plans, positions);
  EXPECT_EQ(verdict.root.rank, 2);
  EXPECT_TRUE(verdict.is_silent);
  for (const StallRoot& other : verdict.other_roots) EXPECT_NE(other.rank, 2);
}

// All members of a collective are in it: the positions do not tell who is the cause.
TEST(StallVerdictTest, AMachineIsNamedIfAllRanksThatMayBeTheCauseAreOnIt) {
  const auto root = [](int rank, plan::OpKind operation) {
    StallRoot root = {.cause = StallCause::kRuns, .rank = rank};
    root.instruction = plan::InstructionId{operation, 0, 0};
    return root;
  };
  const std::vector<int> machines = {0, 0, 1, 1, -1, -1};
  StallVerdict verdict;
  EXPECT_FALSE(MachineOfAllRoots(verdict, machines).has_value());
  verdict.other_roots = {root(3, plan::OpKind::kLoadBatch), root(2, plan::OpKind::kLoadBatch)};
  auto machine = MachineOfAllRoots(verdict, machines);
  ASSERT_TRUE(machine.has_value());
  EXPECT_EQ(machine->ranks, (std::vector<int>{2, 3}));
  EXPECT_TRUE(machine->waits_for_data);
  verdict.other_roots[0] = root(3, plan::OpKind::kForward);
  machine = MachineOfAllRoots(verdict, machines);
  ASSERT_TRUE(machine.has_value());
  EXPECT_FALSE(machine->waits_for_data);
  for (const std::vector<int>& ranks : {std::vector<int>{3, 0}, {4, 5}, {3, 6}, {3, -1}}) {
    verdict.other_roots = {root(ranks[0], plan::OpKind::kForward),
                           root(ranks[1], plan::OpKind::kForward)};
    EXPECT_FALSE(MachineOfAllRoots(verdict, machines).has_value()) << ranks[0] << " " << ranks[1];
  }
}

TEST(StallVerdictTest, AnExchangeThatAllHaveBegunNamesItsRanksAndBlamesTheSilentOne) {
  const std::vector<RankPlan> plans = PlansOf(Of({.data = 3}, 1));
  std::vector<RankPosition> positions = AllAt(plans, InstructionState::kEnded);
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    for (size_t i = 0; i < plans[rank].instructions.size(); ++i) {
      const plan::OpKind kind = plans[rank].instructions[i].kind();
      if (kind == plan::OpKind::kGatherDataNorms) {
        positions[rank].states[i] = InstructionState::kRuns;
      }
      if (kind == plan::OpKind::kReduceNorm || kind == plan::OpKind::kOptimizerStep) {
        positions[rank].states[i] = InstructionState::kNotBegun;
      }
    }
  }
  StallVerdict verdict = ExplainStall(plans, positions);
  EXPECT_EQ(verdict.root.cause, StallCause::kExchange);
  EXPECT_EQ(verdict.root.rank, -1);
  EXPECT_EQ(verdict.root.members, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(verdict.waiting.size(), 3u);
  positions[1].silent_seconds = 4;
  positions[2].silent_seconds = 0.2;
  verdict = ExplainStall(plans, positions);
  EXPECT_EQ(verdict.root.rank, 1);
  EXPECT_TRUE(verdict.is_silent);
}

// Tensor-parallel ranks meet several times within a pass.
TEST(StallVerdictTest, InAPassTheRankThatHasNotComeToTheExchangeIsTheCause) {
  const std::vector<RankPlan> plans = PlansOf(Of({.tensor = 2}, 1));
  std::vector<RankPosition> positions = AllAt(plans, InstructionState::kNotBegun);
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    for (size_t i = 0; i < plans[rank].instructions.size(); ++i) {
      const plan::OpKind kind = plans[rank].instructions[i].kind();
      if (plan::OperationOf(kind).op_class == plan::OpClass::kLoad ||
          kind == plan::OpKind::kGatherParameters) {
        positions[rank].states[i] = InstructionState::kEnded;
      }
      if (kind == plan::OpKind::kForward) positions[rank].states[i] = InstructionState::kRuns;
    }
  }
  positions[0].piece = 3;
  StallVerdict verdict = ExplainStall(plans, positions);
  EXPECT_EQ(verdict.root.rank, 1);
  EXPECT_EQ(verdict.root.cause, StallCause::kRuns);
  positions[1].piece = 2;
  positions[0].piece = 2;
  verdict = ExplainStall(plans, positions);
  EXPECT_EQ(verdict.root.cause, StallCause::kExchange);
  EXPECT_EQ(verdict.root.rank, -1);
}

// --- bytes of a stuck exchange, and numbers ------------------------------------------------------

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

// The bytes from one rank to the other do not arrive.
ExchangeVerdict Undelivered(int from, int to) {
  ExchangeVerdict verdict = {
      .state = FlowState::kNotDelivered, .from = from, .to = to, .stuck = {}};
  verdict.stuck.push_back({.from = from, .to = to, .state = FlowState::kNotDelivered});
  return verdict;
}

TEST(JoinedExchangesTest, NameTheMachineThatAllWaysHaveInCommon) {
  const std::vector<int> machines = {0, 0, 1, 1, 2, 2, 3, 3};
  // Machine 1 is cut off from 0 and from 3.
  ExchangeVerdict joined = JoinExchanges({Undelivered(2, 0), Undelivered(6, 3)}, machines);
  EXPECT_EQ(joined.machine, 1);
  EXPECT_EQ(joined.rank, -1);
  EXPECT_EQ(joined.stuck.size(), 2u);
  // The way between 0 and 1, seen by two pairs.
  joined = JoinExchanges({Undelivered(2, 0), Undelivered(1, 3)}, machines);
  EXPECT_EQ(joined.machine, -1);
  EXPECT_EQ(joined.from, 2);
  EXPECT_EQ(joined.to, 0);
  // Nothing in common.
  joined = JoinExchanges({Undelivered(2, 0), Undelivered(4, 6)}, machines);
  EXPECT_EQ(joined.machine, -1);
  EXPECT_EQ(joined.from, -1);
  EXPECT_NE(joined.state, FlowState::kDone);
}

TEST(JoinedExchangesTest, SeveralBetweenTheSameTwoRanksNameTheWayBetweenThem) {
  for (const std::vector<int>& machines : {std::vector<int>{0, 0}, {0, 1}, {}}) {
    const ExchangeVerdict joined = JoinExchanges({Undelivered(1, 0), Undelivered(0, 1)}, machines);
    EXPECT_EQ(joined.from, 1);
    EXPECT_EQ(joined.to, 0);
    EXPECT_EQ(joined.machine, -1);
    EXPECT_EQ(joined.state, FlowState::kNotDelivered);
  }
}

TEST(JoinedExchangesTest, AnExchangeOfFourRanksOnTwoMachinesNamesTheWayBetweenThem) {
  std::vector<ShownCall> calls = Collective(4);
  for (const auto& [a, b] : {std::pair(0, 2), std::pair(0, 3), std::pair(1, 2), std::pair(1, 3)}) {
    Flow(calls, a, b).delivered_bytes = Flow(calls, b, a).received_bytes = 40;
    Flow(calls, b, a).delivered_bytes = Flow(calls, a, b).received_bytes = 40;
  }
  const ExchangeVerdict alone = ExplainExchange(calls);
  EXPECT_EQ(alone.rank, -1);
  EXPECT_EQ(alone.from, -1);
  const ExchangeVerdict joined = JoinExchanges({alone}, {0, 0, 1, 1});
  EXPECT_EQ(joined.machine, -1);
  EXPECT_EQ(joined.from, 0);
  EXPECT_GE(joined.to, 2);
  EXPECT_EQ(JoinExchanges({alone}, {0, 0, 0, 0}).machine, -1);
  EXPECT_EQ(JoinExchanges({}, {}).state, FlowState::kDone);
}

// Rank 0 sends 100 bytes to rank 1, of which these have come so far; all that rank 1 sends, or
// `back` bytes of it, have arrived.
ExchangeVerdict SendingTo1(int64_t ready, int64_t transmitted, int64_t received,
                           int64_t back = 100) {
  std::vector<ShownCall> calls = Collective(2);
  Flow(calls, 0, 1) = {1, ready, transmitted, received, 100, back, 1};
  Flow(calls, 1, 0) = {0, 100, back, back, 100, received, 1};
  return ExplainExchange(calls);
}

// Source: Mycroft, SOSP '25, table 4.
TEST(ExchangeStateTest, EachStateHasItsRule) {
  struct Rule {
    FlowState state;
    int rank, from, to, likely;
    bool operator==(const Rule&) const = default;
  };
  const auto rule_of = [](const ExchangeVerdict& verdict) {
    return Rule{verdict.state, verdict.rank, verdict.from, verdict.to, verdict.likely};
  };
  EXPECT_EQ(rule_of(SendingTo1(100, 0, 0)), (Rule{FlowState::kNotStarted, -1, 0, 1, -1}));
  EXPECT_EQ(rule_of(SendingTo1(100, 60, 60)), (Rule{FlowState::kNotTransmitted, -1, 0, 1, -1}));
  EXPECT_EQ(rule_of(SendingTo1(100, 100, 60)), (Rule{FlowState::kNotDelivered, -1, 0, 1, 1}));
  EXPECT_EQ(rule_of(SendingTo1(60, 60, 60)), (Rule{FlowState::kNotReady, 0, -1, -1, -1}));
  EXPECT_EQ(rule_of(SendingTo1(100, 100, 100)), (Rule{FlowState::kDone, -1, -1, -1, -1}));
  // What the receiver sends does not arrive either: it is the way.
  EXPECT_EQ(rule_of(SendingTo1(100, 100, 60, 40)), (Rule{FlowState::kNotDelivered, -1, 0, 1, -1}));
  // The sender waits for bytes itself: its device may wait for them.
  EXPECT_EQ(rule_of(SendingTo1(60, 60, 60, 40)).rank, -1);
  EXPECT_EQ(rule_of(SendingTo1(60, 60, 60, 40)).from, 1);
}

TEST(ExchangeStateTest, TheDeviceForWhoseBytesTheOthersWaitIsTheCause) {
  std::vector<ShownCall> calls = Collective(3);
  // 0 has made too little ready for 1, which therefore has too little for 2.
  Flow(calls, 0, 1).send_bytes = Flow(calls, 0, 1).transmitted_bytes = 30;
  Flow(calls, 0, 1).delivered_bytes = Flow(calls, 1, 0).received_bytes = 30;
  Flow(calls, 1, 2).send_bytes = Flow(calls, 1, 2).transmitted_bytes = 20;
  Flow(calls, 1, 2).delivered_bytes = Flow(calls, 2, 1).received_bytes = 20;
  const ExchangeVerdict verdict = ExplainExchange(calls);
  EXPECT_EQ(verdict.state, FlowState::kNotReady);
  EXPECT_EQ(verdict.rank, 0);
  EXPECT_EQ(verdict.from, -1);
  // Two that wait for no one, and a receiver of both: nobody is named, and no network.
  calls = Collective(3);
  for (const int rank : {0, 1}) {
    Flow(calls, rank, 2).send_bytes = Flow(calls, rank, 2).transmitted_bytes = 30;
    Flow(calls, rank, 2).delivered_bytes = Flow(calls, 2, rank).received_bytes = 30;
  }
  const ExchangeVerdict both = ExplainExchange(calls);
  EXPECT_EQ(both.rank, -1);
  const ExchangeVerdict joined = JoinExchanges({both}, {0, 1, 2});
  EXPECT_EQ(joined.rank, -1);
  EXPECT_EQ(joined.from, -1);
  EXPECT_EQ(joined.machine, -1);
}

TEST(JoinedExchangesTest, ARankThatEachExchangeNamesIsNamed) {
  const ExchangeVerdict not_ready = SendingTo1(60, 60, 60);
  const ExchangeVerdict joined = JoinExchanges({not_ready, not_ready}, {0, 1});
  EXPECT_EQ(joined.rank, 0);
  EXPECT_EQ(joined.from, -1);
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

TEST(PositionsTest, ARankStandsInTheNewestStepThatItHasBegun) {
  const std::vector<RankPlan> plans = PlansOf(Of({.data = 2}, 1));
  std::vector<timeline::RankSpans> ranks(2);
  for (size_t rank = 0; rank < 2; ++rank) {
    for (int64_t step = 1; step <= 2 + static_cast<int64_t>(rank); ++step) {
      for (const plan::Instruction& instruction : plans[rank].instructions) {
        ranks[rank].spans.push_back({.begin_nanos = 1,
                                     .end_nanos = 2,
                                     .instruction = instruction.id.packed(),
                                     .step = step});
      }
    }
  }
  ranks[0].spans.back().end_nanos = 0;
  const plan::InstructionId piece = plan::InstructionId(plan::OpKind::kForward, 0, 0).WithPiece(3);
  ranks[1].spans.push_back({.begin_nanos = 1, .instruction = piece.packed(), .step = 3});
  ranks[1].spans.push_back({.begin_nanos = 1, .instruction = ~0ull, .step = 8});
  std::vector<RankPosition> positions = PositionsOf(plans, ranks);
  EXPECT_EQ(positions[0].step, 2);
  EXPECT_EQ(positions[0].states.back(), InstructionState::kRuns);
  EXPECT_EQ(positions[0].states.front(), InstructionState::kEnded);
  EXPECT_EQ(positions[1].step, 3);
  EXPECT_EQ(positions[1].piece, 3);
  ranks[1] = {.known = false, .spans = {}};
  EXPECT_FALSE(PositionsOf(plans, ranks)[1].known);
  // A step that another rank makes up does not move this one.
  ranks[1] = {.spans = {{.begin_nanos = 1,
                         .instruction = plans[1].instructions[0].id.packed(),
                         .step = int64_t{1} << 60}}};
  positions = PositionsOf(plans, ranks);
  EXPECT_EQ(positions[0].step, 2);
  EXPECT_EQ(positions[0].states.back(), InstructionState::kRuns);
}

}  // namespace
}  // namespace megascale::diagnose
