// The walk over positions that were injected: a rank stops at an instruction, the others go on
// until they block, and the verdict must name the rank.
#include "runtime/diagnose/stall.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/plan/build/roles.h"
#include "runtime/plan/build/step_plan.h"
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
TEST(StallVerdictTest, AnExchangeThatAllHaveBegunNamesItsRanksAndBlamesTheSilentOne) {
  const std::vector<RankPlan> plans = PlansOf(Of({.data = 3}, 1));
  std::vector<RankPosition> positions = AllAt(plans, InstructionState::kEnded);
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    for (size_t i = 0; i < plans[rank].instructions.size(); ++i) {
      const plan::OpKind kind = plans[rank].instructions[i].kind();
      if (kind == plan::OpKind::kReduceNorm) positions[rank].states[i] = InstructionState::kRuns;
      if (kind == plan::OpKind::kOptimizerStep) {
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

}  // namespace
}  // namespace megascale::diagnose
