// The learning rate of each step: linear warm-up, then what the job's schedule says (Schedule of
// proto/job.proto).
#pragma once

#include <cstdint>
#include <optional>

namespace megascale::job::v1 {
class OptimizerSpec;
}

namespace megascale::optim {

// Returns the rate of `step` (from 1) of `total_steps`: lr * step / warmup_steps during the
// warm-up, then min_lr + (lr - min_lr) * left. With p from 0 at the end of the warm-up to 1 at the
// last step, `left` is (1 + cos(pi p)) / 2 with COSINE, 1 - p with LINEAR and 1 with CONSTANT. With
// WSD it is 1 until the last decay_steps, then 1 - q, (1 + cos(pi q)) / 2 or 1 - sqrt(q), with q
// from 0 to 1 in these. After the last step the rate is min_lr, with CONSTANT lr. Zeros in `spec`
// take the defaults of proto/job.proto: lr 3e-4, min_lr a tenth of lr. A pure function. Sources:
// Loshchilov and Hutter, "SGDR", 2017, without restarts; Hu et al., "MiniCPM", 2024, section 4;
// Hagele et al., "Scaling laws and compute-optimal training beyond fixed training durations", 2024.
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

// Returns the number of steps in which WSD decays. The default is a tenth of all steps.
int64_t DecaySteps(const job::v1::OptimizerSpec& spec, int64_t total_steps);

}  // namespace megascale::optim
