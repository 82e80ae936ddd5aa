#include "runtime/optim/schedule.h"

#include <algorithm>
#include <cmath>

#include "proto/job.pb.h"
#include "runtime/base/check.h"

namespace megascale::optim {
namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr int64_t kComparedStepsMax = 100'000;

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

std::optional<RateChange> FirstRateChange(const Schedule& was, const Schedule& is,
                                          int64_t completed) {
  MEGASCALE_CHECK(completed >= 0);
  const auto change_at = [&](int64_t step) -> std::optional<RateChange> {
    const RateChange rates = {step, LearningRate(*was.spec, was.total_steps, step),
                              LearningRate(*is.spec, is.total_steps, step)};
    if (rates.was == rates.is) return std::nullopt;
    return rates;
  };
  const int64_t stride = std::max<int64_t>(1, (is.total_steps - completed) / kComparedStepsMax);
  for (int64_t step = completed + 1; step < is.total_steps; step += stride) {
    if (const auto change = change_at(step)) return change;
  }
  return is.total_steps > completed ? change_at(is.total_steps) : std::nullopt;
}

}  // namespace megascale::optim
