#include "runtime/optim/schedule.h"

#include <algorithm>
#include <cmath>

#include "proto/job.pb.h"
#include "runtime/base/check.h"

namespace megascale::optim {
namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr int64_t kComparedStepsMax = 100'000;

double HalfCosine(double progress) { return 0.5 * (1 + std::cos(kPi * progress)); }

// Returns the part of the way from the lowest to the highest rate that is left after `progress` of
// WSD's decay, from 0 to 1.
double DecayLeft(job::v1::Decay decay, double progress) {
  switch (decay) {
    case job::v1::DECAY_COSINE:
      return HalfCosine(progress);
    case job::v1::DECAY_ONE_MINUS_SQRT:
      return 1 - std::sqrt(progress);
    default:
      return 1 - progress;
  }
}

// The same for every schedule, of a step that is `passed` steps behind the warm-up, of `num_steps`
// steps.
double RateLeft(const job::v1::OptimizerSpec& spec, int64_t total_steps, int64_t passed,
                int64_t num_steps) {
  const auto part = [](int64_t some, int64_t all) {
    return static_cast<double>(some) / static_cast<double>(all);
  };
  switch (spec.schedule()) {
    case job::v1::SCHEDULE_CONSTANT:
      return 1;
    case job::v1::SCHEDULE_LINEAR:
      return 1 - part(passed, num_steps);
    case job::v1::SCHEDULE_WSD: {
      const int64_t decay = DecaySteps(spec, total_steps);
      const int64_t stable = num_steps - decay;
      return passed <= stable ? 1 : DecayLeft(spec.decay(), part(passed - stable, decay));
    }
    default:
      return HalfCosine(part(passed, num_steps));
  }
}

}  // namespace

int64_t DecaySteps(const job::v1::OptimizerSpec& spec, int64_t total_steps) {
  return spec.decay_steps() > 0 ? spec.decay_steps() : std::max<int64_t>(1, total_steps / 10);
}

double LearningRate(const job::v1::OptimizerSpec& spec, int64_t total_steps, int64_t step) {
  MEGASCALE_CHECK(step >= 0);
  const double highest = spec.lr() == 0 ? 3e-4 : spec.lr();
  const double lowest = spec.min_lr() == 0 ? highest / 10 : spec.min_lr();
  const int64_t warmup = spec.warmup_steps();
  if (step < warmup) return highest * static_cast<double>(step) / static_cast<double>(warmup);
  if (step > total_steps && spec.schedule() != job::v1::SCHEDULE_CONSTANT) return lowest;
  if (total_steps <= warmup) return highest;
  return lowest +
         (highest - lowest) * RateLeft(spec, total_steps, step - warmup, total_steps - warmup);
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
