// On any machine, a paced step is not shorter than the longest path over its plan: no operation is
// left out, and each begins only after all that it waits for, here and on other ranks, has ended.
#include "tests/bench/paced_step.h"

#include <gtest/gtest.h>

#include "runtime/plan/build/roles.h"
#include "runtime/plan/plan_options.h"

namespace megascale::bench {
namespace {

using plan::Instruction;
using plan::Schedule;

constexpr int64_t kMilli = 1'000'000;

plan::PlanOptions Shape(plan::MeshSizes mesh, Schedule schedule, int chunks) {
  plan::PlanOptions options;
  options.mesh = plan::Mesh::Create(mesh).value();
  options.schedule = schedule;
  options.chunks_per_stage = chunks;
  options.num_microbatches = mesh.pipeline;
  return options;
}

TEST(PacedStepTest, NoStepIsShorterThanItsLongestPath) {
  for (const plan::PlanOptions& shape :
       {Shape({.data = 2, .pipeline = 2}, Schedule::kInterleaved1F1B, 2),
        Shape({.data = 1, .pipeline = 3}, Schedule::kZeroBubbleH1, 1),
        Shape({.data = 1, .pipeline = 2, .tensor = 2}, Schedule::k1F1B, 1)}) {
    PacedOptions options = {.plan = shape, .num_steps = 3};
    // Only one end of a message has the time; it counts for the other end, too.
    options.duration = [](const plan::RankPlan&, const Instruction& instruction) -> int64_t {
      const bool receives = instruction.id != instruction.id.MessageId();
      return plan::IsPass(instruction.kind()) ? 3 * kMilli : receives ? 0 : 2 * kMilli;
    };
    const auto roles = plan::BuildRolePlans(shape).value();
    const int64_t stated = simulate::TimeStep(roles, options.duration)->end;
    const auto steps = RunPaced(options);
    ASSERT_TRUE(steps.ok()) << steps.status();
    EXPECT_EQ(steps->size(), 3u);
    for (const absl::Duration step : *steps) EXPECT_GE(step, absl::Nanoseconds(stated));
  }
}

TEST(PacedStepTest, WhatCannotBePlannedIsRefused) {
  PacedOptions options = {.plan = Shape({}, Schedule::k1F1B, 1)};
  options.plan.num_microbatches = 0;
  EXPECT_EQ(RunPaced(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace megascale::bench
