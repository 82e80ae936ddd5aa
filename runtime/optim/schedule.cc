#include "runtime/optim/schedule.h"

#include <cmath>

#include "proto/job.pb.h"
#include "runtime/base/check.h"

namespace megascale::optim {
namespace {

constexpr double kPi = 3.14159265358979323846;

}  // namespace

double LearningRate(const job::v1::OptimizerSpec& spec, int64_t total_steps, int64_t step) {
  MEGASCALE_CHECK(step >= 0);
  const double highest = spec.lr() == 0 ? 3e-4 : spec.lr();
  const double lowest = spec.min_lr() == 0 ? highest / 10 : spec.min_lr();
  const int64_t warmup = spec.warmup_steps();
  if (step < warmup) return highest * static_cast<double>(step) / static_cast<double>(warmup);
  if (step > total_steps) return lowest;
  if (total_steps <= warmup) return highest;
  const double progress =
      static_cast<double>(step - warmup) / static_cast<double>(total_steps - warmup);
  return lowest + (highest - lowest) * 0.5 * (1 + std::cos(kPi * progress));
}

}  // namespace megascale::optim
