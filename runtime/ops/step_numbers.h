// The numbers of an optimizer step, which stay on the device: operators read them there, so that a
// step waits for no host. Each has a place in a vector of F64.
#pragma once

#include <cstdint>

namespace megascale::ops {

// The numbers that all ranks hold alike.
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
// What a rank contributes to them.
enum RankNumber : uint8_t { kRankSumOfSquares, kRankLossSum, kRankStop, kNumRankNumbers };

// Returns the factor for the gradients that makes their norm, the root of `sum_of_squares` over all
// parameters of the model, at most `clip_grad`. 1 if it already is, or if clip_grad is 0.
double ClipFactor(double sum_of_squares, double clip_grad);

}  // namespace megascale::ops
