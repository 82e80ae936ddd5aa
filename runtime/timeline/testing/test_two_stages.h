// A small step to draw: two pipeline stages, three micro-batches.
#pragma once

#include <vector>

#include "runtime/plan/build/step_plan.h"
#include "runtime/simulate/step_time.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::timeline {

inline std::vector<plan::RankPlan> TwoStages() {
  plan::PlanOptions options;
  options.mesh = plan::Mesh::Create({.data = 1, .pipeline = 2}).value();
  options.num_microbatches = 3;
  options.chunks = {{.forward_flops = 100, .backward_flops = 200, .output_bytes = 10},
                    {.forward_flops = 100, .backward_flops = 200, .output_bytes = 10}};
  return {plan::BuildTrainPlan(options, 0).value(), plan::BuildTrainPlan(options, 1).value()};
}

inline StepTime Time(const std::vector<plan::RankPlan>& plans) {
  return simulate::TimeStep(plans,
                            [](const plan::RankPlan&, const plan::Instruction& i) {
                              return i.flops * 1000 + i.bytes * 500;
                            })
      .value();
}

}  // namespace megascale::timeline
