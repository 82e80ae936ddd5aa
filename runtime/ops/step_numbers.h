// The numbers of an optimizer step. They stay on the device, where operators read them, so that a
// step does not wait for the host. Each number has a place in a vector of F64.
#pragma once

#include <cstdint>

namespace megascale::ops {

// The numbers that are equal on all ranks.
enum StepNumber : uint8_t {
  kLearningRate,
  kStep,        // from 1
  kClipFactor,  // of the gradients
  kIsFinite,    // 0: loss or gradient norm is not finite, and the step changes no weight or state
  kSumOfSquares,
  kLossSum,
  kStop,  // the highest of the ranks' stop flags
  kNumStepNumbers,
};
// The numbers that each rank contributes, from which the step's numbers are computed.
enum RankNumber : uint8_t { kRankSumOfSquares, kRankLossSum, kRankStop, kNumRankNumbers };

// Returns the factor for the gradients that makes their norm, the root of `sum_of_squares` over all
// parameters of the model, at most `clip_grad`. Returns 1 if the norm already is, or if clip_grad
// is 0.
double ClipFactor(double sum_of_squares, double clip_grad);

}  // namespace megascale::ops
