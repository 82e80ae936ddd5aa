// Numbers of a step, and single numbers, in this process's memory.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/ops/ops.h"

namespace megascale::ops {

// Returns a view of one number.
inline Vector Number(double* number) { return {number, DType::kF64, 1}; }

inline Vector Numbers(std::vector<double>* numbers) {
  return {numbers->data(), DType::kF64, static_cast<int64_t>(numbers->size())};
}

struct TestStepNumbers {
  TestStepNumbers(double lr, int64_t step, double clip_factor = 1.0) {
    numbers[kLearningRate] = lr;
    numbers[kStep] = static_cast<double>(step);
    numbers[kClipFactor] = clip_factor;
    numbers[kIsFinite] = 1;
  }
  Vector vector() { return {numbers.data(), DType::kF64, kNumStepNumbers}; }

  std::array<double, kNumStepNumbers> numbers = {};
};

}  // namespace megascale::ops
