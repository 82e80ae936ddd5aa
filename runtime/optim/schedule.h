// The learning rate of each step: linear warm-up, then half a cosine down to the lowest rate.
#pragma once

#include <cstdint>

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

}  // namespace megascale::optim
