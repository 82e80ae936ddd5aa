// Operations on single numbers that the two implementations on the host share. Private to this
// folder.
#pragma once

#include "runtime/ops/ops.h"

namespace megascale::ops {

// Compute on the host what the operators CombineNorms and FirstNotFinite compute.
void CombineNormsOnHost(const CombineNormsArgs& args);
void FirstNotFiniteOnHost(const Matrix& x, const Vector& out);

// Returns the numbers of a step, from host memory.
inline double NumberOf(const Vector& step_numbers, StepNumber number) {
  return step_numbers.as<const double>()[number];
}
inline bool IsFinite(const Vector& step_numbers) { return NumberOf(step_numbers, kIsFinite) != 0; }

// Returns the factor by which TrustStep scales the update: -lr * ratio.
double TrustFactor(const TrustStepArgs& args);

}  // namespace megascale::ops
