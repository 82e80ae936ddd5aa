// Finds conspicuous numbers in the loss log: a loss or gradient norm that jumps, a number that is
// not finite, and steps that become slower for good. Pure functions. Source: ByteRobust, SOSP '25
// (a factor of 5); MegaScale, NSDI '24, section 6.3 (MFU declines).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace megascale::diagnose {

// One step of the loss log.
struct LoggedStep {
  int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  int64_t tokens = 0;
  double seconds = 0;
  int64_t attempt = 0;
};

enum class OffRoad { kLossJump, kGradientJump, kNotFinite, kSlower };

struct NumberFinding {
  OffRoad kind = OffRoad::kLossJump;
  int64_t step = 0;  // where it began
  double value = 0;  // loss, norm, or tokens per second
  double usual = 0;  // the usual value before that step
};

// A value is compared with the median of this many steps before it.
inline constexpr size_t kUsualWindow = 32;
// A jump is this many times the median.
inline constexpr double kJumpFactor = 5;
// Steps have become slower if the median rate of the newest kRateWindow steps is below this share
// of the median rate of the steps before them, in the same attempt, and has not grown again.
inline constexpr double kSlowerShare = 0.9;
inline constexpr size_t kRateWindow = 64;

// Returns at most one finding of each kind, the newest, in the order of OffRoad. `steps`:
// ascending. Jumps older than the newest kUsualWindow steps are left out. Early steps, for which
// there is no usual value, are never a jump.
std::vector<NumberFinding> CheckNumbers(absl::Span<const LoggedStep> steps);

}  // namespace megascale::diagnose
