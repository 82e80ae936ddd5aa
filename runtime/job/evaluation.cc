#include "runtime/job/evaluation.h"

#include <algorithm>

namespace megascale::job {
namespace {

constexpr int64_t kEvaluations = 10;  // in a job that leaves train.eval_interval out
constexpr int64_t kStepsPerBatch = 100;

}  // namespace

int64_t EvaluationInterval(const v1::JobSpec& spec) {
  const v1::TrainSpec& train = spec.train();
  if (train.has_eval_interval()) return train.eval_interval();
  return std::max<int64_t>(1, train.steps() / kEvaluations);
}

int64_t EvaluationBatches(const v1::JobSpec& spec) {
  const v1::TrainSpec& train = spec.train();
  if (train.eval_batches() > 0) return train.eval_batches();
  const int64_t batch = std::max<int64_t>(1, train.global_batch_size());
  const int64_t least = (kEvaluationWindowsMin + batch - 1) / batch;
  return std::clamp<int64_t>(train.steps() / kStepsPerBatch, least, kEvaluationBatchesMax);
}

bool IsEvaluated(const v1::JobSpec& spec, int64_t step) {
  const int64_t interval = EvaluationInterval(spec);
  if (interval == 0 || step < 1) return false;
  return step % interval == 0 || step == spec.train().steps();
}

int64_t LastEvaluated(const v1::JobSpec& spec, int64_t step) {
  const int64_t interval = EvaluationInterval(spec);
  if (interval == 0 || step < 1) return 0;
  const int64_t steps = spec.train().steps();
  return step >= steps ? steps : step - step % interval;
}

}  // namespace megascale::job
