// The learning rate of each step: linear warm-up, then half a cosine down to the lowest rate.
#pragma once

#include <cstdint>
#include <optional>

namespace megascale::job::v1 {
class OptimizerSpec;
}

namespace megascale::optim {

// Returns the rate of `step` (from 1) of `total_steps`: lr * step / warmup_steps during the
// warm-up, then min_lr + (lr - min_lr) * (1 + cos(pi * progress)) / 2, where progress goes from 0
// at the end of the warm-up to 1 at the last step; min_lr after that. Zeros in `spec` take the
// defaults of proto/job.proto: lr 3e-4, min_lr a tenth of lr. A pure function. Source: Loshchilov
// and Hutter, "SGDR", 2017, without restarts.
double LearningRate(const job::v1::OptimizerSpec& spec, int64_t total_steps, int64_t step);

// Everything that decides the learning rate of each step of a job. Borrows `spec`.
struct Schedule {
  const job::v1::OptimizerSpec* spec;
  int64_t total_steps;
};

// A step at which two schedules have different rates.
struct RateChange {
  int64_t step;
  double was;
  double is;
};

// Returns the first step after `completed`, up to the last of `is`, at which the rate is not that
// of `was`; nullopt: there is none. It knows no kind of schedule: it compares rates of steps, every
// step of a short rest, and 100,000 steps of a longer one, the next and the last among them.
std::optional<RateChange> FirstRateChange(const Schedule& was, const Schedule& is,
                                          int64_t completed);

}  // namespace megascale::optim
