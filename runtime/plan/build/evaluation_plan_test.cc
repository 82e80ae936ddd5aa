#include "runtime/plan/build/evaluation_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/plan/build/roles.h"
#include "runtime/plan/check/launch_order.h"
#include "runtime/plan/check/validate_roles.h"
#include "runtime/plan/check/validate_step.h"

namespace megascale::plan {
namespace {

using ::testing::HasSubstr;

std::vector<RankPlan> BuildAll(const PlanOptions& options) {
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < options.mesh.world_size(); ++rank) {
    plans.push_back(BuildEvaluationPlan(options, rank).value());
  }
  return plans;
}

// Every schedule in turn, with sizes that the seed draws.
PlanOptions ShapeOf(int number, std::mt19937* random) {
  const auto draw = [&](int least, int most) {
    return least + static_cast<int>((*random)() % static_cast<unsigned>(most - least + 1));
  };
  PlanOptions options;
  options.schedule = static_cast<Schedule>(number % 4);
  const bool takes_turns = options.schedule == Schedule::kInterleaved1F1B;
  const int pipeline = draw(takes_turns ? 2 : 1, 6);
  options.mesh =
      Mesh::Create({.data = draw(1, 3), .pipeline = pipeline, .tensor = draw(1, 2)}).value();
  options.num_microbatches = takes_turns ? pipeline * draw(1, 4) : draw(1, 20);
  if (takes_turns) options.chunks_per_stage = draw(2, 4);
  options.spare_slots = draw(0, 2);
  options.zero_stage = draw(1, 2);
  options.overlap = {.grad_reduce = draw(0, 1) == 1,
                     .param_gather = draw(0, 1) == 1,
                     .p2p_communication = draw(0, 1) == 1};
  options.has_tied_ends = pipeline > 1 && draw(0, 1) == 1;
  options.every_chunk_reads_batch = draw(0, 1) == 1;
  for (int chunk = 0; chunk < options.num_chunks(); ++chunk) {
    options.num_buckets.push_back(draw(1, 3));
  }
  return options;
}

TEST(EvaluationPlan, IsValidInEveryLayoutAndUsesTheSlotsOfTheTraining) {
  std::mt19937 random(20261129);
  for (int number = 0; number < 200; ++number) {
    PlanOptions options = ShapeOf(number, &random);
    const std::vector<RankPlan> plans = BuildAll(options);
    ASSERT_EQ(ValidatePlans(plans), absl::OkStatus()) << "shape " << number;
    for (const RankPlan& plan : plans) {
      ASSERT_EQ(plan.slots, BuildTrainPlan(options, plan.rank)->slots) << "shape " << number;
    }
    options.evaluates = true;
    const std::vector<RankPlan> roles = BuildRolePlans(options).value();
    ASSERT_EQ(ValidateRolePlans(roles), absl::OkStatus()) << "shape " << number;
    ASSERT_EQ(LaunchOrderOf(options, 0).status(), absl::OkStatus()) << "shape " << number;
  }
}

TEST(EvaluationPlan, UsesTheStreamsAndChannelsOfTheTraining) {
  std::mt19937 random(7);
  for (int number = 0; number < 40; ++number) {
    const PlanOptions options = ShapeOf(number, &random);
    for (const RankPlan& plan : BuildAll(options)) {
      const RankPlan training = BuildTrainPlan(options, plan.rank).value();
      for (const Instruction& one : plan.instructions) {
        const bool is_there =
            std::any_of(training.instructions.begin(), training.instructions.end(),
                        [&](const Instruction& other) {
                          return other.stream == one.stream && other.group == one.group &&
                                 other.channel == one.channel;
                        });
        ASSERT_TRUE(is_there) << one.id.ToString() << " of shape " << number;
      }
    }
  }
}

TEST(EvaluationPlan, RunsEveryMicrobatchForwardOnceInTheOrderOfTheWindows) {
  const RankPlan plan =
      BuildEvaluationPlan(
          {.mesh = Mesh::Create({.data = 2, .pipeline = 2}).value(), .num_microbatches = 3}, 1)
          .value();
  EXPECT_EQ(ToString(plan).find("B."), std::string::npos);
  std::vector<std::string> ids;
  for (const Instruction& instruction : plan.instructions) {
    ids.push_back(instruction.id.ToString());
  }
  EXPECT_THAT(ids, ::testing::ElementsAre("EL.c0", "EG.c0", "E.c0.m0", "ESA.c0.m0", "E.c0.m1",
                                          "ESA.c0.m1", "E.c0.m2", "ESA.c0.m2", "END", "EN"));
  EXPECT_EQ(plan.gradient_buffers, 0);
}

std::string RefusalOf(const PlanOptions& options, const std::function<void(Instruction&)>& change) {
  std::vector<RankPlan> plans = BuildAll(options);
  for (RankPlan& plan : plans) {
    for (Instruction& instruction : plan.instructions) change(instruction);
  }
  return std::string(ValidatePlans(plans).message());
}

TEST(EvaluationPlan, WhatDoesNotWaitForItsInputIsRefused) {
  const PlanOptions options = {
      .mesh = Mesh::Create({.data = 2, .pipeline = 2, .tensor = 2}).value(),
      .num_microbatches = 3,
      .has_tied_ends = true};
  EXPECT_EQ(RefusalOf(options, [](Instruction&) {}), "");
  for (const auto& [kind, needed] :
       {std::pair(OpKind::kEvaluate, "E.c0.m0 uses what EL.c0 makes"),
        std::pair(OpKind::kGatherTensorLosses, "ENT uses what E.c0.m0 makes"),
        std::pair(OpKind::kSendEvaluated, "ESA.c0.m0 uses what E.c0.m0 makes"),
        std::pair(OpKind::kSendHead, "ESE uses what EG.c0 makes")}) {
    EXPECT_THAT(RefusalOf(options,
                          [kind = kind](Instruction& instruction) {
                            if (instruction.kind() == kind) instruction.depends_on.clear();
                          }),
                HasSubstr(needed));
  }
}

// In another order the sum would have other bits than the norm's order gives.
TEST(EvaluationPlan, LossesThatAreNotAddedUpInTheOrderOfTheNormAreRefused) {
  const PlanOptions options = {
      .mesh = Mesh::Create({.data = 2, .pipeline = 2, .tensor = 2}).value(), .num_microbatches = 3};
  for (const auto& [first, refusal] : {std::pair(3, "rank 0: END uses what ENT makes"),
                                       std::pair(2, "rank 0: EN uses what END makes")}) {
    std::vector<RankPlan> plans = BuildAll(options);
    for (RankPlan& plan : plans) {
      Instruction& one = *(plan.instructions.end() - first);
      Instruction& next = *(plan.instructions.end() - first + 1);
      std::swap(one, next);
      std::swap(one.depends_on, next.depends_on);
    }
    EXPECT_THAT(std::string(ValidatePlans(plans).message()), HasSubstr(refusal));
  }
  std::vector<RankPlan> plans = BuildAll(options);
  for (RankPlan& plan : plans) plan.instructions.pop_back();
  EXPECT_THAT(std::string(ValidatePlans(plans).message()), HasSubstr("EN is missing"));
}

TEST(EvaluationPlan, HasNoInstructionOfAStepNorAStepOneOfAnEvaluation) {
  const PlanOptions options = {.mesh = Mesh::Create({}).value(), .num_microbatches = 1};
  RankPlan plan = BuildEvaluationPlan(options, 0).value();
  plan.evaluates = false;
  EXPECT_THAT(std::string(ValidatePlans({plan}).message()),
              HasSubstr("EL.c0 is in a plan of a training step"));
  plan = BuildTrainPlan(options, 0).value();
  plan.evaluates = true;
  EXPECT_THAT(std::string(ValidatePlans({plan}).message()),
              HasSubstr("L.c0 is in a plan of an evaluation"));
}

}  // namespace
}  // namespace megascale::plan
