// Repeats computations with a known result on every processor core that this process may use.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/time/time.h"
#include "runtime/machine/part.h"

namespace megascale::machine {

// The digest that ReplayTraining returns on every processor that follows IEEE 754.
inline constexpr uint64_t kTrainingDigest = 0xe9568dc1079bd049;

// Trains a small fixed network (two layers, Adam, 48 steps) in fp64 and fp32 and returns the digest
// of its weights. Every processor gives the same bits, because it uses only operations that IEEE
// 754 rounds exactly, in a fixed order.
uint64_t ReplayTraining();

struct TrainingOptions {
  absl::Duration budget = absl::Milliseconds(100);  // of each core; at least once
  std::function<uint64_t()> training = ReplayTraining;
};
// Fails if a core computes another digest than kTrainingDigest.
PartResult CheckTraining(const TrainingOptions& options);

struct ArithmeticOptions {
  absl::Duration budget = absl::Milliseconds(100);  // of each core; at least once
  Tamper tamper = {};                               // changes a product
};
// Multiplies matrices of small whole numbers with the operators that ranks use, in fp32 and bf16.
// The products of such matrices are exact, whatever the order of the additions. Fails if a core
// computes another product.
PartResult CheckArithmetic(const ArithmeticOptions& options);

}  // namespace megascale::machine
