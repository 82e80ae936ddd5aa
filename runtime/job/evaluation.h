// When a job measures the loss on held-out text while it trains, and on how many windows. Requires
// everywhere: the job is resolved. A pure function of the job, so that its ranks and its loaders
// agree without asking each other.
#pragma once

#include <cstdint>

#include "proto/job.pb.h"

namespace megascale::job {

// The default of train.eval_batches is at most this.
inline constexpr int64_t kEvaluationBatchesMax = 100;
// By default an evaluation measures at least this many windows: the loss on a few is far from the
// loss on all.
inline constexpr int64_t kEvaluationWindowsMin = 64;
static_assert(kEvaluationWindowsMin <= kEvaluationBatchesMax);

// Returns the number of steps between two evaluations; 0: there are none. The default is a tenth of
// the job's steps. A resolved job leaves a default out, because agents of the release before do not
// know the field.
int64_t EvaluationInterval(const v1::JobSpec& spec);

// Returns the largest number of batches of windows in an evaluation. The default is a hundredth of
// the job's steps, and no fewer than have kEvaluationWindowsMin windows. Ten evaluations of a
// hundredth take about 3 % of the job's computing, as a forward pass takes a third of a step.
int64_t EvaluationBatches(const v1::JobSpec& spec);

// Whether the weights after `step` are evaluated.
bool IsEvaluated(const v1::JobSpec& spec, int64_t step);

// Returns the newest step up to `step` whose weights are evaluated; 0: there is none.
int64_t LastEvaluated(const v1::JobSpec& spec, int64_t step);

}  // namespace megascale::job
